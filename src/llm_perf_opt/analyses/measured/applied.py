"""Which stages a measured time corrects, and by what: a fit for each kind of time, applied to the stages it covers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llm_perf_opt.analyses.measured.correction import (
    Fit,
    FitPoint,
    Remaining,
    StageCorrection,
    StageFactor,
    centre,
    corrected_stage,
    fitted,
    remaining,
    width,
)
from llm_perf_opt.analyses.measured.correction_report import MeasuredPoint
from llm_perf_opt.analyses.measured.measurement import MeasuredRun, Measurement, Quantity
from llm_perf_opt.analyses.measured.predicted_points import PredictedPoint, is_covered
from llm_perf_opt.analyses.time.predict import StageTime
from llm_perf_opt.core.callgraph.graph import CallGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTime:
    """A measured time with the prediction of the same work."""

    run: MeasuredRun
    time: Measurement
    scale: float  # on the measured seconds: tokens that one step gives
    predicted: PredictedPoint
    point: MeasuredPoint
    is_contradicted: bool  # it names another model or device than the prediction

    @property
    def key(self) -> tuple[Quantity, str | None, str | None]:
        """What it measured: the kind of time, the stage, the phase that a recording is of."""
        return self.time.quantity, self.time.stage, self.run.phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A fit and which stages it corrects."""

    quantity: Quantity
    stage: str | None
    phase: str | None
    fit: Fit
    by_family: dict[str, Fit]
    is_device_time: bool
    is_same_point: bool
    is_contradicted: bool

    @property
    def remaining(self) -> Remaining | None:
        """None where the measurement is of another model or device: then no record says what is left."""
        if self.is_contradicted:
            return None
        return remaining(self.quantity, self.fit, is_same_point=self.is_same_point)


def applied(found: Sequence[FoundTime]) -> Iterator[Applied]:
    """One fit for each kind of time, those of single stages first: they say more than the time of a whole phase."""
    keys = dict.fromkeys(one.key for one in found)
    for quantity, stage, phase in sorted(keys, key=lambda key: key[0] is not Quantity.STAGE):
        chosen = [one for one in found if one.key == (quantity, stage, phase)]
        points = [
            FitPoint(
                samples_s=tuple(sample * one.scale for sample in one.time.samples_s), predicted_s=one.point.predicted_s
            )
            for one in chosen
        ]
        yield Applied(
            quantity=quantity,
            stage=stage,
            phase=phase,
            fit=fitted(points),
            by_family=_family_fits(chosen, phase),
            is_device_time=chosen[0].time.is_device_time,
            is_same_point=any(one.point.is_same_point for one in chosen),
            is_contradicted=any(one.is_contradicted for one in chosen),
        )


def _family_fits(chosen: Sequence[FoundTime], phase: str | None) -> dict[str, Fit]:
    points: dict[str, list[FitPoint]] = {}
    for one in chosen:
        predicted = one.predicted.family_seconds(one.time, phase)
        for family, seconds in one.time.by_family.items():
            if predicted.get(family):
                points.setdefault(family, []).append(FitPoint(samples_s=(seconds,), predicted_s=predicted[family]))
    return {family: fitted(found) for family, found in points.items()}


def corrected(
    stage: StageTime, graph: CallGraph, own: PredictedPoint, fits: Sequence[Applied]
) -> tuple[StageTime, StageCorrection | None]:
    """A stage by the first fit that covers it, and what that did; `own` is the uncorrected prediction of all stages."""
    one = next(
        (
            one
            for one in fits
            if is_covered(one.quantity, one.stage, graph.phase, stage.name) and one.phase in (None, graph.phase)
        ),
        None,
    )
    if one is None:
        return stage, None
    time = Measurement(quantity=one.quantity, stage=one.stage, samples_s=(1.0,), is_device_time=one.is_device_time)
    families = own.family_seconds(time, one.phase)
    left = one.remaining
    given = StageFactor(
        factor=one.fit.factor_at(own.seconds(time, one.phase)),
        remaining=left,
        is_device_time=one.is_device_time,
        by_family={name: fit.factor_at(families[name]) for name, fit in one.by_family.items() if families.get(name)},
    )
    after = corrected_stage(stage, given)
    before_s, after_s = centre(stage.wall), centre(after.wall)
    return after, StageCorrection(
        phase=graph.phase,
        stage=stage.name,
        by=one.quantity,
        measurements=one.fit.measurements,
        factor=after_s / before_s if before_s else given.factor,
        before_s=before_s,
        after_s=after_s,
        low_s=after.wall.low,
        high_s=after.wall.high,
        width_before=width(stage.wall),
        width_after=width(after.wall),
        by_family=given.by_family,
        is_same_point=one.is_same_point,
        why=left.why if left is not None else "nothing says what a measurement of something else leaves",
    )
