// Plans again while a slider is moved: the operating point, the replicas and their cost, by the formulas of
// harness/decide/plan (capacity.choose, replicas.count, costs.costs).
"use strict";
const whatIf = JSON.parse(document.getElementById("what-if-data").textContent);
const amount = value => value.toLocaleString("en", Math.abs(value) < 1000 ? {maximumSignificantDigits: 3} : {maximumFractionDigits: 0});
const milliseconds = seconds => `${Number((1e3 * seconds).toPrecision(6))}ms`;
const WORDS = {price: value => `$${value}`, rps: value => `${value}`};
const isLimit = name => !(name in WORDS);

// The load at which each replica runs: the highest that is known to meet the limits, below the lowest that misses them; without
// limits the lowest that has nearly all of the throughput.
function operatingPoint(limits) {
  const loads = whatIf.loads;
  if (!limits.length) {
    const most = Math.max(...loads.map(each => each.work_per_s));
    return loads.find(each => each.work_per_s >= whatIf.enough * most);
  }
  const missed = loads.findIndex(each => limits.some(([name, most]) => most < each.missed_below_s[name]));
  const below = missed < 0 ? loads : loads.slice(0, missed);
  return below.filter(each => limits.every(([name, most]) => each.met_from_s[name] != null && most >= each.met_from_s[name])).at(-1);
}

// Whole machines; a hair above is none.
function replicas(rps, work_per_s) {
  return Math.max(1, Math.ceil(rps * whatIf.work_per_request / work_per_s / whatIf.utilization - 1e-9));
}

function planned(chosen) {
  const limits = Object.entries(chosen).filter(([name, value]) => isLimit(name) && value != null);
  const at = operatingPoint(limits);
  if (!at) return null;
  const n = replicas(chosen.rps, at.work_per_s), hour = n * chosen.price * whatIf.gpus, per_s = hour / 3600;
  return {at, n, ci95: at.ci95.map(end => replicas(chosen.rps, end)).sort((a, b) => a - b), hour,
    month: hour * whatIf.month_h, million: per_s / (chosen.rps * whatIf.work_per_request) * 1e6, thousand: per_s / chosen.rps * 1e3};
}

function figure(name, by_largest) {
  const [latency, percentile] = name.split("_");
  return `${latency.toUpperCase()} ${by_largest.includes(name) ? "max" : percentile}`;
}

function facts(plan) {
  if (!plan) return [["Operating point", "none", "no measured load is known to meet the limits"]];
  const {at, n, ci95} = plan, slow = Object.entries(at.latency_s).filter(([, value]) => value != null)
    .map(([name, value]) => `${figure(name, at.by_largest)} ${amount(1e3 * value)} ms`);
  return [
    ["Operating point", `${amount(at.load)} ${whatIf.load_unit}`, [`${amount(at.work_per_s)} ${whatIf.per_s}`, ...slow].join(", ")],
    ["Replicas", String(n), ci95[0] === ci95[1] ? "" : `95 % interval ${ci95[0]}–${ci95[1]}`],
    ["Cost", `$${amount(plan.hour)} an hour`, `$${amount(plan.month)} a month, $${amount(plan.million)} per 1M ${whatIf.unit}, `
      + `$${amount(plan.thousand)} per 1,000 requests`],
  ];
}

// The same as a command; "" where the run's own limits would take the place of none.
function command(chosen) {
  const limits = Object.entries(chosen).filter(([name, value]) => isLimit(name) && value != null);
  if (!limits.length && whatIf.own_slo) return "";
  const slo = limits.map(([name, value]) => `${name}=${milliseconds(value)}`).join(",");
  return ["knee plan DIR", ...slo ? [`--slo ${slo}`] : [], `--rps ${chosen.rps} --price ${chosen.price}`].join(" ");
}

function fill(section, plan, chosen) {
  section.querySelector(".answer").replaceChildren(...facts(plan).map(([label, value, detail]) => {
    const cell = document.createElement("div");
    for (const [tag, name, words] of [["dt", "", label], ["dd", "value", value], ["dd", "detail", detail]])
      cell.append(Object.assign(document.createElement(tag), {className: name, textContent: words}));
    return cell;
  }));
  section.querySelector("code.command").textContent = command(chosen);
}

// The operating point on the curve, from the first move of a slider on.
const guides = charts.curve && (charts.curve.guides || []);
function mark(plan) {
  const figure = document.getElementById("curve");
  if (!figure || !figure.redraw) return;
  charts.curve.guides = plan ? [...guides, {at: plan.at.load, tone: "p50", line: "dotted", label: `each replica at ${amount(plan.at.load)}`}] : guides;
  figure.redraw();
}

const section = document.querySelector(".what-if");
const inputs = whatIf.controls.map(control => [control, section.querySelector(`input[name="${control.name}"]`)]);
function update(moved) {
  const chosen = {};
  for (const [control, input] of inputs) {
    const value = chosen[control.name] = control.stops[input.value];
    const words = value == null ? "no limit" : isLimit(control.name) ? `${amount(1e3 * value)} ms` : WORDS[control.name](value);
    input.setAttribute("aria-valuetext", words);
    input.parentNode.querySelector("output").textContent = words;
  }
  const plan = planned(chosen);
  fill(section, plan, chosen);
  if (moved) mark(plan);
}
for (const [, input] of inputs) input.addEventListener("input", () => update(true));
update(false);
