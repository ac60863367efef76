"""How close a stage came to what the device could do, what held it back, and what no device can do."""

from llm_perf_opt.analyses.roofline.bound import Bound, SpeedOfLight, speed_of_light
from llm_perf_opt.analyses.roofline.chart import efficiency_table, roofline_chart, roofline_of_bands
from llm_perf_opt.analyses.roofline.efficiency import StageEfficiency, model_mfu, stage_efficiency
from llm_perf_opt.analyses.roofline.ops import OpRoofline, op_rooflines, op_table
from llm_perf_opt.analyses.roofline.physics import MEASURED_SLACK, check_physics

__all__ = [
    "Bound",
    "MEASURED_SLACK",
    "OpRoofline",
    "SpeedOfLight",
    "StageEfficiency",
    "check_physics",
    "efficiency_table",
    "model_mfu",
    "op_rooflines",
    "op_table",
    "roofline_chart",
    "roofline_of_bands",
    "speed_of_light",
    "stage_efficiency",
]
