"""Which package foreign code could not import, and the command that the error gives."""

from __future__ import annotations

from importlib import metadata

import pytest

from llm_perf_opt.core.missing_packages import ImportFailure, import_failure, pip_install, torchvision_requirement

INSTALLED = {"torch": "2.13.0", "torchvision": "0.28.0", "transformers": "5.22.2"}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    versions = dict(INSTALLED)

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    return versions


def raised(source: str) -> Exception:
    try:
        exec(source)
    except Exception as error:  # noqa: BLE001  whatever the snippet raises is the sample
        return error
    raise AssertionError("the snippet must raise")


def test_a_missing_package_is_named() -> None:
    assert import_failure(raised("import no_such_package_here.inside")) == ImportFailure(
        why="no_such_package_here is not installed", fix="pip install no_such_package_here"
    )


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("addict", "pip install addict"),
        ("PIL", "pip install pillow"),
        ("cv2", "pip install opencv-python"),
        ("flash_attn", "pip install flash-attn --no-build-isolation"),
        ("torchvision", "pip install 'torchvision==0.28.*'"),
    ],
)
def test_the_command_knows_the_name_that_pip_knows(name: str, command: str) -> None:
    failure = import_failure(ModuleNotFoundError(f"No module named {name!r}", name=name))
    assert failure is not None
    assert failure.fix == command


def test_the_list_that_transformers_makes() -> None:
    error = ImportError(
        "This modeling file requires the following packages that were not found in your environment: addict, "
        "easydict, flash_attn. Run `pip install addict easydict flash_attn`"
    )
    failure = import_failure(error, "4.46.3")
    assert failure is not None
    assert failure.why == (
        "addict, easydict and flash_attn are not installed; the code was written for transformers 4.46.3, and 5.22.2 "
        "is installed"
    )
    assert failure.fix == "pip install addict easydict && pip install flash-attn --no-build-isolation"


def test_a_transformers_that_is_too_new() -> None:
    error = ImportError(
        "cannot import name 'LlamaFlashAttention2' from 'transformers.models.llama.modeling_llama' (/some/place.py)"
    )
    failure = import_failure(error, "4.46.3")
    assert failure == ImportFailure(
        why="transformers 5.22.2 has no LlamaFlashAttention2 in transformers.models.llama.modeling_llama; the code was "
        "written for transformers 4.46.3",
        fix="pip install 'transformers==4.46.3'",
    )


def test_a_module_that_another_version_has() -> None:
    failure = import_failure(ModuleNotFoundError("No module named 'torch.gone'", name="torch.gone"))
    assert failure is not None
    assert failure.why == "torch 2.13.0 has no gone in torch.gone"
    assert failure.fix == "install the version of torch that the code needs"


def test_a_torchvision_of_another_build(installed: dict[str, str]) -> None:
    installed["torch"] = "2.13.0+cpu"
    failure = import_failure(RuntimeError("operator torchvision::nms does not exist"))
    assert failure is not None
    assert failure.why == "torchvision 0.28.0 was built for another torch than 2.13.0+cpu"
    assert failure.fix == (
        "pip install 'torchvision==0.28.*' --index-url https://download.pytorch.org/whl/cpu --force-reinstall --no-deps"
    )


@pytest.mark.parametrize(
    ("torch", "requirement"),
    [
        ("2.6.0", "torchvision==0.21.*"),
        ("2.10.0+cu128", "torchvision==0.25.* --index-url https://download.pytorch.org/whl/cu128"),
        ("3.0", "torchvision"),
    ],
)
def test_the_torchvision_that_goes_with_a_torch(torch: str, requirement: str, installed: dict[str, str]) -> None:
    installed["torch"] = torch
    assert torchvision_requirement() == requirement


def test_a_kernel_that_transformers_asks_for() -> None:
    error = ImportError(
        "FlashAttention2 has been toggled on, but it cannot be used due to the following error: the package flash_attn "
        "seems to be not installed."
    )
    failure = import_failure(error)
    assert failure is not None
    assert failure.fix == "pip install flash-attn --no-build-isolation"


def test_the_cause_of_an_error_is_looked_at() -> None:
    error = raised("try:\n    import no_such_package_here\nexcept ImportError as e:\n    raise ValueError('no') from e")
    failure = import_failure(error)
    assert failure is not None
    assert failure.fix == "pip install no_such_package_here"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("hidden_size is wide"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        ImportError("cannot import name 'Model' from 'transformers_modules.house.model' (x.py)"),
        ModuleNotFoundError("No module named 'x; rm -rf ~'", name="x; rm -rf ~"),
        ImportError("attempted relative import with no known parent package"),
    ],
)
def test_no_package_is_blamed_for_other_errors(error: Exception) -> None:
    assert import_failure(error, "4.46.3") is None


def test_a_version_from_a_foreign_file_is_a_version() -> None:
    error = ImportError("cannot import name 'Gone' from 'transformers.models' (x.py)")
    failure = import_failure(error, "4.46.3' && rm -rf ~ '")
    assert failure is not None
    assert "rm -rf" not in failure.why + failure.fix


def test_packages_that_build_against_torch_come_in_a_command_of_their_own() -> None:
    assert pip_install(["flash_attn", "addict"]) == "pip install addict && pip install flash-attn --no-build-isolation"
