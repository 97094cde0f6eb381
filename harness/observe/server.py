"""The metrics that the server publishes: a Prometheus page read into figures.

vLLM's names first; SGLang's and llama-server's where they mean the same. Counts are summed over their labels, and
shares averaged.
A server that publishes nothing has no samples, and every figure made from them stays None.
"""

from __future__ import annotations

import re

from harness.record import SERVER, Sample

# our name: the servers' names for it (vLLM, SGLang, llama-server)
NAMES: dict[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred"),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"),
    "prefix_queries": ("vllm:prefix_cache_queries_total",),
    "prefix_hits": ("vllm:prefix_cache_hits_total",),
    "prompt_tokens": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
    "generation_tokens": ("vllm:generation_tokens_total", "sglang:generation_tokens_total"),
    # llama-server's leave cached tokens out, and count an answer when it ends.
    "computed_prompt_tokens": ("llamacpp:prompt_tokens_total",),
    "ended_generation_tokens": ("llamacpp:tokens_predicted_total",),
    "preemptions": ("vllm:num_preemptions_total",),
    "draft_tokens": ("vllm:spec_decode_num_draft_tokens_total",),
    "requests_succeeded": ("vllm:request_success_total",),
}
_SHARES = {"kv_usage"}  # of one engine each: of several their mean
_ours = {theirs: ours for ours, names in NAMES.items() for theirs in names}
# Both expressions take a time that grows with the text's length alone, whatever the text is: what a part has taken it
# never gives back (`++`), and a line that is no sample is read once.
_SAMPLE = re.compile(
    r"\n((?:vllm|sglang|llamacpp):[a-zA-Z0-9_:]++)"
    r'(\{(?:[^"}\n]++|"(?:[^"\\\n]++|\\[^\n])*+")*+\})?+'
    r"[ \t]++([^\s]{1,64}+)(?=\s|\Z)"
)
_LABEL = re.compile(r'[ \t,]*+([a-zA-Z_][a-zA-Z0-9_]*+)="((?:[^"\\]++|\\.)*+)"')
_MOST_SAMPLES = 20_000  # of our names on one page; a server has some for each of its engines
_MOST = 1e18  # of anything that is counted; more is no count
_MOST_LABELS, _LONGEST_LABEL = 64, 200  # that are kept of a configuration, and characters of each


def parse(page: str) -> dict[str, float]:
    """Our names and their figures in one Prometheus text page; counts of one name are added up, shares averaged.

    >>> parse('vllm:num_requests_running{engine="0"} 3.0\\nvllm:num_requests_running{engine="1"} 4.0')
    {'running': 7.0}
    """
    found: dict[str, float] = {}
    series: dict[str, int] = {}
    ours = (sample for sample in _SAMPLE.finditer("\n" + page) if sample[1] in _ours)
    for n, sample in enumerate(ours):
        if n == _MOST_SAMPLES:
            return {}  # no server has so many, and a part of a sum is no sum
        try:
            value = float(sample[3])
        except ValueError:  # not a number
            continue
        if 0 <= value < _MOST:
            name = _ours[sample[1]]
            found[name], series[name] = found.get(name, 0.0) + value, series.get(name, 0) + 1
    return {name: value / series[name] if name in _SHARES else value for name, value in found.items()}


def cache_config(page: str) -> dict[str, str]:
    """The labels of vLLM's cache_config_info: block_size, num_gpu_blocks and the rest as published."""
    info = next((s for s in _SAMPLE.finditer("\n" + page) if s[1] == "vllm:cache_config_info"), None)
    if info is None or info[2] is None:
        return {}
    labels: dict[str, str] = {}
    at = 1
    while len(labels) < _MOST_LABELS and (label := _LABEL.match(info[2], at)) is not None:
        labels[label[1][:_LONGEST_LABEL]] = label[2][:_LONGEST_LABEL]
        at = label.end()  # each begins where the one before ended: nothing is read twice
    return labels


def samples(time_s: float, figures: dict[str, float], source: str = SERVER) -> list[Sample]:
    return [Sample(time_s, source, name, value) for name, value in figures.items()]
