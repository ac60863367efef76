"""The record of a run: what was called, how often, with which tensors, and the JSON file that keeps it."""

from llm_perf_opt.core.callgraph.builder import CallGraphBuilder
from llm_perf_opt.core.callgraph.graph import SCHEMA_VERSION, CallGraph, StagePaths
from llm_perf_opt.core.callgraph.json_reader import from_json_dict, read_callgraph
from llm_perf_opt.core.callgraph.json_writer import to_json_dict, write_callgraph
from llm_perf_opt.core.callgraph.records import (
    CallColumns,
    Coverage,
    Json,
    Observation,
    OpColumns,
    OpKind,
    OracleAnswer,
    Parameter,
    StorageColumns,
    TensorMeta,
)
from llm_perf_opt.core.tensor_formats import StoredFormats, WeightFormat, tensor_bytes, weight_format

__all__ = [
    "SCHEMA_VERSION",
    "CallColumns",
    "CallGraph",
    "CallGraphBuilder",
    "Coverage",
    "Json",
    "Observation",
    "OpColumns",
    "OpKind",
    "OracleAnswer",
    "Parameter",
    "StagePaths",
    "StorageColumns",
    "StoredFormats",
    "TensorMeta",
    "WeightFormat",
    "from_json_dict",
    "read_callgraph",
    "tensor_bytes",
    "to_json_dict",
    "weight_format",
    "write_callgraph",
]
