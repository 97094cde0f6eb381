"""What the server publishes of itself: a Prometheus page read into figures, and those figures over a window.

vLLM's names first; SGLang's and llama-server's where they mean the same. Counts are summed over their labels, and
shares averaged.
A server that publishes nothing gives an empty list, and everything made from it stays None.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence

from harness.store import Sample
from harness.summary import ServerView

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
    "requests_succeeded": ("vllm:request_success_total",),
}
_SHARES = {"kv_usage"}  # of one engine each: of several their mean
_ours = {theirs: ours for ours, names in NAMES.items() for theirs in names}
# Both expressions take a time that grows with the text's length alone, whatever the text is: what a part has taken it
# never gives back (`++`), and a line that is no sample is looked at once.
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
        except ValueError:  # a figure that is no number says nothing
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
        at = label.end()  # each begins where the one before ended: nothing is looked at twice
    return labels


def samples(time_s: float, figures: dict[str, float]) -> list[Sample]:
    return [Sample(time_s, "server", name, value) for name, value in figures.items()]


def view(
    all_samples: Sequence[Sample],
    window: tuple[float, float],
    arrivals: Sequence[float],
    arrival_tokens: Sequence[int],
    prompts: Sequence[tuple[float, float]],
    *,
    steps_per_s: float | None,
    computed: Sequence[tuple[float, float]] = (),
    ended: Sequence[tuple[float, float]] = (),
) -> ServerView | None:
    """The server's own account of one window, and its token counters against ours.

    `arrivals` and `arrival_tokens` are ours, every request's, in order of time; `prompts` is (first token's time,
    prompt tokens), `computed` the same without what was cached, `ended` (last token's time, output tokens): servers
    count by one or the other. Both sides are counted between the same two scrapes. Fewer than 200 engine steps
    between them (`steps_per_s`) cannot tell a difference of 1 % from a step at the edge: no ratio then.
    """
    series: dict[str, list[tuple[float, float]]] = {}
    for sample in all_samples:
        if sample.source == "server" and window[0] <= sample.time_s <= window[1]:
            series.setdefault(sample.metric, []).append((sample.time_s, sample.value))
    if not series:
        return None

    def mean(name: str) -> float | None:
        values = [value for _, value in series.get(name, [])]
        return sum(values) / len(values) if values else None

    def grown(name: str) -> tuple[float, float, float] | None:
        """(from, to, increase) of a counter; None where it was not seen twice or was reset."""
        points = series.get(name, [])
        if len(points) < 2 or points[-1][1] < points[0][1] or points[-1][0] <= points[0][0]:
            return None
        return points[0][0], points[-1][0], points[-1][1] - points[0][1]

    def by_request(counter: tuple[float, float, float], ours: Sequence[tuple[float, float]]) -> float | None:
        """The counter over ours; a request more or less at the edges is half a percent of 200."""
        inside = [tokens for time_s, tokens in ours if counter[0] <= time_s < counter[1]]
        return counter[2] / sum(inside) if len(inside) >= 200 and sum(inside) > 0 else None

    generation, prompt = grown("generation_tokens"), grown("prompt_tokens")
    whole, fresh = grown("ended_generation_tokens"), grown("computed_prompt_tokens")
    queries, hits, preempted = grown("prefix_queries"), grown("prefix_hits"), grown("preemptions")
    generation_ratio = prompt_ratio = None
    if generation and steps_per_s and (generation[1] - generation[0]) * steps_per_s >= 200:
        low, high = bisect.bisect_left(arrivals, generation[0]), bisect.bisect_left(arrivals, generation[1])
        ours = sum(arrival_tokens[low:high])
        generation_ratio = generation[2] / ours if ours else None
    if whole:
        generation, generation_ratio = whole, by_request(whole, ended)
    if prompt:
        prompt_ratio = by_request(prompt, prompts)
    if fresh:
        prompt, prompt_ratio = fresh, by_request(fresh, computed)
    return ServerView(
        running=mean("running"),
        waiting=mean("waiting"),
        kv_usage=mean("kv_usage"),
        prefix_hit_fraction=hits[2] / queries[2] if hits and queries and queries[2] > 0 else None,
        preemptions=preempted[2] if preempted else None,
        generation_tokens_per_s=generation[2] / (generation[1] - generation[0]) if generation else None,
        prompt_tokens_per_s=prompt[2] / (prompt[1] - prompt[0]) if prompt else None,
        generation_tokens_ratio=generation_ratio,
        prompt_tokens_ratio=prompt_ratio,
    )
