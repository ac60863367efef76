"""Do what `docs/contributing/add-a-model.md` says, in the installed package: write the file, add the line, trace the
model.

python scripts/follow_guide.py docs/contributing/add-a-model.md
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path


def main() -> None:
    guide = Path(sys.argv[1]).read_text("utf-8")
    written = re.search(r"```python\n(\s*# (src/\S+\.py)\n.*?)```", guide, re.DOTALL)
    registered = re.search(r'\*\*Register it\*\* in `(\w+)`.*?```python\n\s*("([\w-]+)": "[\w.:]+",)', guide, re.DOTALL)
    if written is None or registered is None:
        sys.exit("The guide has no file to write, or no line to register.")
    import llm_perf_opt

    package = Path(llm_perf_opt.__file__).parent
    file = package.parent / Path(written[2]).relative_to("src")
    plugins = package / "core" / "plugins.py"
    before = plugins.read_text("utf-8")
    table, line, name = registered.groups()
    after = re.sub(rf"(^{table}: .*?\{{\n)", rf"\1        {line}\n", before, count=1, flags=re.DOTALL | re.MULTILINE)
    file.parent.mkdir(exist_ok=True)
    try:
        file.write_text(textwrap.dedent(written[1]))
        plugins.write_text(after)
        for words in (["models"], ["trace", name, "--prompt-tokens", "10"]):
            done = subprocess.run(["llm-perf-opt", *words], capture_output=True, text=True)
            if done.returncode or name not in done.stdout:
                sys.exit(f"llm-perf-opt {' '.join(words)} does not know {name}:\n{done.stdout}{done.stderr}")
        print(f"   {name} is listed and traced")
    finally:
        plugins.write_text(before)
        file.unlink()
        if not any(file.parent.glob("*.py")):
            shutil.rmtree(file.parent)


if __name__ == "__main__":
    main()
