"""The shape of llm-d's benchmark report, version 0.2, as far as Knee writes it, as a JSON Schema.

Fields, units and what is required: llm-d-benchmark, llmdbenchmark/analysis/benchmark_report, schema_v0_2.py and
br_v0_2_json_schema.json. No other field is allowed there either.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def table(required: Schema, **optional: Schema) -> Schema:
    properties = {**required, **optional}
    return {"type": "object", "required": list(required), "properties": properties, "additionalProperties": False}


def statistics(*units: str) -> Schema:
    more = dict.fromkeys(("stddev", "min", "p50", "p90", "p95", "p99", "max"), NUMBER)
    return table({"units": {"enum": list(units)}, "mean": NUMBER}, **more)


NUMBER: Schema = {"type": "number"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NATURAL: Schema = {"type": "integer", "minimum": 1}
TEXT: Schema = {"type": "string"}
LENGTH = table({"distribution": {"enum": ["fixed", "gaussian", "uniform", "other"]}, "value": NUMBER})
ENGINE = table(
    {
        "kind": {"const": "inference_engine"},
        "tool": TEXT,
        "tool_version": TEXT,
        "role": {"enum": ["replica", "prefill", "decode"]},
        "replicas": NATURAL,
        "model": table({"name": TEXT}),
        "accelerator": table({"model": TEXT, "count": NATURAL, "parallelism": table({}, tp=NATURAL)}),
    }
)
LOAD = table(
    {
        "tool": TEXT,
        "tool_version": TEXT,
        "source": {"enum": ["random", "sampled", "unknown"]},
        "input_seq_len": LENGTH,
    },
    parallelism=NATURAL,
    stage=COUNT,
    output_seq_len=LENGTH,
    rate_qps={"type": "number", "exclusiveMinimum": 0},
    concurrency=NATURAL,
)
LATENCY = table(
    {},
    time_to_first_token=statistics("s", "ms"),
    time_per_output_token=statistics("s/token", "ms/token"),
    inter_token_latency=statistics("s/token", "ms/token"),
    request_latency=statistics("s", "ms"),
)
TOKENS = statistics("tokens/s")
AGGREGATE = table(
    {},
    requests=table(
        {"total": COUNT}, failures=COUNT, incomplete=COUNT,
        input_length=statistics("count"), output_length=statistics("count"),
    ),
    latency=LATENCY,
    throughput=table({}, input_token_rate=TOKENS, output_token_rate=TOKENS, request_rate=statistics("queries/s")),
)  # fmt: skip
REPORT = table(
    {
        "run": table(
            {"uid": TEXT},
            eid=TEXT,
            description=TEXT,
            keywords={"type": "array", "items": TEXT},
            time=table({}, start=TEXT, end=TEXT, duration=TEXT),
        ),
        "results": table({}, request_performance=table({}, aggregate=AGGREGATE)),
    },
    version={"const": "0.2"},
    scenario=table(
        {},
        stack={
            "type": "array",
            "items": table(
                {"metadata": table({"label": TEXT, "cfg_id": TEXT}), "standardized": ENGINE, "native": table({})}
            ),
        },
        load=table({"metadata": table({}), "standardized": LOAD, "native": table({})}),
    ),
)
