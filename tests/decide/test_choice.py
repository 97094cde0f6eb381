import msgspec
import pytest

from harness.base.errors import HarnessError
from harness.decide.choice import Demand, best_sizes, choose, gains, with_usual
from harness.decide.plan.question import rounded_up
from harness.predict.catalog import gpu, gpus, model_config
from harness.predict.deployment import deployment
from harness.predict.model import model
from harness.predict.roofline import predict
from harness.predict.steady import caps
from harness.spec.work import MeanLengths

LLAMA = model(model_config("llama-3.1-8b"), "llama-3.1-8b")
SEVENTY = model(model_config("llama-3.1-70b"), "llama-3.1-70b")
CHAT = MeanLengths(1000, 200)
SLO = {"itl_p99": 0.025, "ttft": 2.0}


def priced(key, usd_per_hour):
    return msgspec.structs.replace(gpu(key), usd_per_hour=(usd_per_hour, usd_per_hour))


def keys(found):
    return [(each.gpu, each.tp) for each in found]


def test_every_card_of_the_table_is_judged_and_those_that_are_out_come_last_with_their_reason():
    found = choose(SEVENTY, gpus(), CHAT, slo=SLO)
    assert {each.gpu for each in found} == {card.key for card in gpus()}
    out = [bool(each.why_not) for each in found]
    assert out == sorted(out)
    reasons = {(each.gpu, each.tp): each.why_not for each in found if each.why_not}
    assert "does not fit on 8 × tpu-v5e" in reasons["tpu-v5e", 8]
    assert reasons["l4", 8] == "misses the SLO even with one user"


def test_sizes_that_do_not_fit_are_one_line_a_card_beside_those_that_do():
    found = choose(SEVENTY, [gpu("h100-sxm"), gpu("l4"), gpu("mi300x")], CHAT)
    out = {(each.gpu, each.tp): each.why_not for each in found if each.why_not}
    assert out == {
        ("h100-sxm", 1): "llama-3.1-70b (141 GB of weights) does not fit on one h100-sxm; it fits from 2 on",
        ("l4", 4): "llama-3.1-70b (141 GB of weights) does not fit on 4 × l4; it fits from 8 on",
    }
    assert sorted(keys(found[:-2])) == [("h100-sxm", 2), ("h100-sxm", 4), ("h100-sxm", 8), ("l4", 8)] + [
        ("mi300x", n) for n in (1, 2, 4, 8)
    ]


def test_the_best_size_of_a_card_is_the_first_that_serves():
    found = best_sizes(choose(SEVENTY, [gpu("h100-sxm"), gpu("l4"), gpu("t4")], CHAT))
    assert [(each.gpu, bool(each.why_not)) for each in found] == [("h100-sxm", False), ("l4", False), ("t4", True)]
    cheapest = min(choose(SEVENTY, [gpu("h100-sxm")], CHAT)[:3], key=lambda each: each.usd_per_million_slow)
    assert found[0].tp == cheapest.tp


def test_a_mistake_in_what_was_asked_is_no_reason_against_a_card():
    with pytest.raises(HarnessError, match=r"--mbu: a share of 1\.5"):
        choose(LLAMA, gpus(), CHAT, mbu=1.5)
    with pytest.raises(HarnessError, match="--draft-tokens"):
        choose(LLAMA, gpus(), CHAT, draft_tokens=3)


def test_the_speed_beyond_a_bridge_is_a_doubt_of_the_sizes_that_need_it():
    found = choose(LLAMA, [gpu("h100-pcie")], CHAT)
    assert {each.tp for each in found if any("a bridge joins 2" in doubt for doubt in each.doubts)} == {4, 8}


def test_the_cheapest_that_meets_the_slo_is_first():
    found = [each for each in choose(LLAMA, gpus(), CHAT, slo=SLO) if not each.why_not and each.constants != "guess"]
    prices = [each.usd_per_million_slow for each in found if each.usd_per_million_slow is not None]
    assert prices == sorted(prices)
    assert all(each.usd_per_million_slow > each.usd_per_million for each in found if each.usd_per_million)
    # a card without a price comes behind those that have one
    assert [each.usd_per_million is None for each in found] == sorted(each.usd_per_million is None for each in found)


def test_cards_whose_constants_are_a_guess_stand_behind_the_others():
    cards = [priced("mi300x", 0.1), priced("h100-sxm", 3.0)]
    found = [each for each in choose(LLAMA, cards, CHAT) if each.tp == 1]
    assert [(each.gpu, each.constants) for each in found] == [("h100-sxm", "published"), ("mi300x", "guess")]


def test_a_limit_on_the_first_token_alone_is_completed_by_one_on_the_others():
    waiting = {"ttft_p99": 60.0}
    (one,) = [each for each in choose(SEVENTY, [gpu("mi300x")], CHAT, slo=waiting) if each.tp == 1]
    slow = predict(SEVENTY, deployment(gpu("mi300x")), CHAT, [one.concurrency + 1], slo={"tpot": 0.2}).levels[0]
    assert one.itl_s < 0.2
    assert slow.meets_slo is False
    assert with_usual({"ttft": 1.0, "e2e": 9.0}, CHAT) == {"ttft": 1.0, "e2e": 9.0}
    assert with_usual({}, CHAT) == {}


@pytest.mark.parametrize(("key", "sizes"), [("gh200-96", [1]), ("dgx-spark", [1, 2]), ("h100-sxm", [1, 2, 4, 8])])
def test_sizes_are_those_that_a_link_joins(key, sizes):
    assert sorted({each.tp for each in choose(LLAMA, [gpu(key)], CHAT)}) == sizes


def test_the_fastest_is_first_where_speed_is_asked():
    rates = [
        each.output_tokens_per_s.low
        for each in choose(LLAMA, gpus(), CHAT, slo=SLO, rank="speed")
        if not each.why_not and each.constants != "guess"
    ]
    assert rates == sorted(rates, reverse=True)


def test_a_choice_stands_at_its_best_load_within_the_slo():
    (best, *_) = choose(LLAMA, [gpu("h100-sxm")], CHAT, slo=SLO)
    where = deployment(gpu("h100-sxm"), tp=best.tp)
    most = caps(LLAMA, where, CHAT, SLO)["slo"]
    assert best.concurrency == most
    assert best.output_tokens_per_s == predict(LLAMA, where, CHAT, [int(most)]).levels[0].output_tokens_per_s
    assert best.usd_per_hour == pytest.approx((1.99 + 5.0) / 2 * best.tp)
    assert best.itl_s <= 0.025


def test_without_an_slo_the_batch_is_full():
    (one, *_) = choose(LLAMA, [gpu("h100-sxm")], CHAT, max_num_seqs=64)
    assert one.concurrency == 64


def test_an_own_price_beats_the_tables():
    (one, *_) = choose(LLAMA, [priced("h100-sxm", 1.0)], CHAT)
    assert one.usd_per_hour == one.tp


def test_cards_without_a_link_come_alone():
    alone = msgspec.structs.replace(gpu("h100-sxm"), link=None)
    assert keys(choose(LLAMA, [alone], CHAT)) == [("h100-sxm", 1)]
    assert keys(choose(LLAMA, [gpu("h100-sxm:3g.40gb")], CHAT)) == [("h100-sxm:3g.40gb", 1)]


def test_encoders_are_ranked_by_what_their_prompts_cost():
    bge = model(model_config("bge-m3"), "bge-m3")
    found = choose(bge, [gpu("l4"), gpu("h100-sxm")], MeanLengths(512, 0))
    assert found[0].requests_per_s > 0
    assert found[0].usd_per_million <= found[-1].usd_per_million


def test_other_makers_cards_say_that_their_constants_are_a_guess():
    others = ("mi300x", "gaudi3", "tpu-v5e")
    cards = [gpu(key) for key in (*others, "h100-sxm", "b200-sxm")]
    found = {each.gpu: each.doubts for each in choose(LLAMA, cards, CHAT)}
    for key in others:
        assert "were fitted on NVIDIA cards" in found[key][0]
    assert found["h100-sxm"] == []
    assert "medium certainty" in found["b200-sxm"][0]


def test_a_demand_is_ranked_by_the_month_of_its_replicas_with_a_spare():
    found = choose(LLAMA, [gpu("h100-sxm"), gpu("l4")], CHAT, demand=Demand(requests_per_s=1.0))
    best = best_sizes(found)
    assert best[0].gpu == "l4"  # of which a token costs more, and three of which cost less than two H100
    for each in best:
        fleet, most = each.fleet, each.requests_per_s_slow
        assert fleet.replicas == max(rounded_up(1 / most / 0.7), rounded_up(1 / most) + 1)
        assert fleet.usd_per_month == pytest.approx(each.usd_per_hour * fleet.replicas * 720)
        assert fleet.utilization == pytest.approx(1 / most / fleet.replicas)
    tokens = {each.gpu: each.usd_per_million_slow for each in best}
    assert tokens["h100-sxm"] < tokens["l4"]
    (alone, *_) = choose(LLAMA, [gpu("h100-sxm")], CHAT, demand=Demand(requests_per_s=1.0, spare=0))
    assert alone.fleet.replicas == 1


def test_replicas_serve_their_share_of_a_demand_with_as_few_users_as_it_keeps_in_flight():
    (one, *_) = choose(LLAMA, [gpu("h100-sxm")], CHAT, demand=Demand(requests_per_s=30.0))
    fleet, where = one.fleet, deployment(gpu("h100-sxm"), tp=one.tp)
    below, there = predict(LLAMA, where, CHAT, [fleet.concurrency - 1, fleet.concurrency]).levels
    share = 30 / fleet.replicas
    assert below.requests_per_s.mid < share <= there.requests_per_s.mid
    assert (fleet.itl_s, fleet.ttft_s) == (there.itl_s, there.ttft_s)
    assert fleet.itl_s < one.itl_s  # far below its best load


def test_the_least_power_and_the_shortest_answer_are_orders_too():
    cards = [gpu("h100-sxm"), gpu("l4"), gpu("b200-sxm")]
    watts = [each.fleet.watts for each in choose(LLAMA, cards, CHAT, rank="power", demand=Demand(requests_per_s=20))]
    assert watts == sorted(watts)
    kwh = choose(LLAMA, cards, CHAT, rank="power")
    assert [each.kwh_per_million for each in kwh] == sorted(each.kwh_per_million for each in kwh)
    assert kwh[0].kwh_per_million == pytest.approx(kwh[0].watts / kwh[0].output_tokens_per_s.low / 3600 * 1e3)
    alone = choose(LLAMA, cards, CHAT, rank="latency")
    assert {each.concurrency for each in alone} == {1}
    answers = [each.ttft_s + 199 * each.itl_s for each in alone]
    assert answers == sorted(answers)


def test_gains_are_of_a_batch_without_limits_and_of_prompts_alone():
    card = gpu("h100-sxm")
    one = next(each for each in choose(LLAMA, [card], CHAT, slo=SLO) if each.tp == 1)
    free = next(each for each in choose(LLAMA, [card], CHAT) if each.tp == 1)
    offline, prompts = gains(LLAMA, card, one, CHAT)
    assert offline == pytest.approx(free.output_tokens_per_s.mid / one.output_tokens_per_s.mid)
    assert offline > 1
    assert prompts > offline  # a prompt's tokens share every weight that is read
    assert gains(LLAMA, card, free, CHAT)[0] == 1


def test_an_unknown_order_names_the_nearest():
    with pytest.raises(HarnessError, match=r"unknown order 'costs'; did you mean 'cost'"):
        choose(LLAMA, gpus(), CHAT, rank="costs")
