// Draws the charts by Observable Plot, reads their points out under a pointer and the arrow keys, and sorts tables.
// Text reaches the page as text alone. Colours are variables of the style sheet, so that light, dark and paper are
// chosen in one place.
"use strict";
const charts = JSON.parse(document.getElementById("charts").textContent);
const DASHES = {dashed: "7 4", dotted: "1.5 4"};
const SYMBOLS = {dot: "circle", ring: "circle", square: "square", diamond: "diamond"};
const VIEWS = {"log load": chart => [chart.x.log, chart.y.log], "log–log": () => [10, 10], linear: () => [0, 0]};
const CHARACTER = 6.6, LINE = 15, NEAR = 40;  // px: of a label, and around a point that a pointer reads
const colour = tone => `var(--${tone})`;
const figures = value => value.toLocaleString("en", {maximumSignificantDigits: 4, notation: Math.abs(value) < 1e5 ? "standard" : "compact"});

// The smallest and the largest value of an axis: its own ends, where they fit its scale, else those of its points.
function domain(chart, axis, log) {
  const ends = chart[axis].ends;
  if (ends && (!log || ends[0] > 0)) return ends;
  const keys = axis === "y" ? ["y", "low", "high"] : ["x"];
  const marked = (chart.guides || []).filter(each => (each.axis || "x") === axis).map(each => each.at);
  const values = (chart.series || []).flatMap(each => each.points).flatMap(point => keys.map(key => point[key])).concat(marked)
    .filter(value => value != null && (!log || value > 0));
  const top = ends ? ends[1] : Math.max(...values) * (log ? 1.2 : 1.06);
  return log ? [Math.min(...values) / 1.2, top] : [0, top || 1];
}

// Places for ticks of a log axis of base 10: 1, 2 and 5 where there is room, else the powers of ten alone; round numbers
// where the axis is too short for two of them.
function decades([low, high]) {
  const every = Math.log10(high / low) > 3 ? [1] : [1, 2, 5], found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
    found.push(...every.map(each => each * 10 ** power).filter(at => at >= low && at <= high));
  return found.length > 1 ? found : d3.ticks(low, high, 4);
}

// Names of values on the x axis in rows above the axes, none over another: [guide, place, row, anchor].
function rows(guides, place, left, right) {
  const ends = [];
  return guides.map(guide => [guide, guide.at == null ? right : place(guide.at)]).sort((a, b) => a[1] - b[1])
    .map(([guide, x]) => {
      const width = text(guide).length * CHARACTER, start = Math.max(left, Math.min(x - width / 2, right - width));
      let row = ends.findIndex(end => end + 8 < start);
      if (row < 0) row = ends.length;
      ends[row] = start + width;
      return [guide, x, row, start];
    });
}
const text = guide => guide.detail ? `${guide.label} (${guide.detail})` : guide.label;

function thinned(ticks, place) {
  let end = -Infinity;
  return ticks.filter(([at, name]) => {
    const half = name.length * CHARACTER / 2, x = place(at);
    if (x - half < end + 4) return false;
    end = x + half;
    return true;
  });
}

function scale(chart, name, log) {
  return {type: log ? "log" : "linear", ...log && {base: log}, domain: domain(chart, name, log), axis: null};
}

// An axis with ticks at its own places, else where they fall. Its words go by as text: Plot leaves out some of a log axis.
function axis(mark, label, ticks, count, words) {
  const style = {label, labelArrow: "none", tickSize: 4};
  return ticks ? mark(ticks, {...style, text: words}) : mark({...style, ticks: count, tickFormat: figures});
}

function guideMarks(guide, scales) {
  const on = guide.axis || "x", [low, high] = scales[on].domain, stroke = colour(guide.tone), marks = [];
  const [rect, rule] = on === "x" ? [Plot.rect, Plot.ruleX] : [Plot.rect, Plot.ruleY];
  if (guide.ci95 && guide.ci95.some(end => end != null)) {
    const ends = {[`${on}1`]: Math.max(guide.ci95[0] ?? low, low), [`${on}2`]: Math.min(guide.ci95[1] ?? high, high)};
    marks.push(rect([0], {...ends, fill: stroke, fillOpacity: 0.14}));
  }
  if (guide.line && guide.at >= low && guide.at <= high)
    marks.push(rule([guide.at], {stroke, strokeWidth: 1.4, strokeDasharray: DASHES[guide.line]}));
  if (on === "y" && guide.label && guide.at >= low && guide.at <= high)
    marks.push(Plot.text([text(guide)], {y: [guide.at], frameAnchor: "left", textAnchor: "start", dx: 5, dy: -8,
      fill: stroke, stroke: "var(--paper)", strokeWidth: 4, fontWeight: 600}));
  return marks;
}

function seriesMarks(series, scales) {
  const stroke = colour(series.tone), marks = [], [low, high] = scales.y.domain;
  const seen = series.points.filter(point => point.x >= scales.x.domain[0] && point.x <= scales.x.domain[1] && point.y >= low);
  const sure = seen.filter(point => point.low != null && point.high != null).map(point =>
    ({...point, low: Math.max(point.low, low), high: Math.min(point.high, high)}));
  const at = {x: "x", y: "y"};
  if (series.line && sure.length)
    marks.push(Plot.areaY(sure, {x: "x", y1: "low", y2: "high", fill: stroke, fillOpacity: 0.17}));
  if (series.line)
    marks.push(Plot.line(seen, {...at, stroke, strokeWidth: 2, strokeDasharray: DASHES[series.line]}));
  else if (sure.length)
    marks.push(Plot.ruleX(sure, {x: "x", y1: "low", y2: "high", stroke, strokeOpacity: series.pale ? 0.4 : 1, strokeWidth: 1.6,
      marker: "tick"}));
  if (series.marker)
    marks.push(Plot.dot(seen, {...at, symbol: SYMBOLS[series.marker], r: series.line ? 3 : 4.5, stroke, strokeWidth: 1.8,
      fill: series.marker === "ring" ? "var(--paper)" : stroke}));
  const named = seen.filter(point => point.label);
  if (named.length)
    marks.push(Plot.text(named, {...at, text: "label", dx: 6, dy: -8, textAnchor: "start", fill: stroke,
      stroke: "var(--paper)", strokeWidth: 3}));
  return marks;
}

function draw(chart, place, view) {
  const width = Math.max(280, place.clientWidth), height = place.clientHeight || 300, left = 56, right = width - 14;
  const [xLog, yLog] = (chart.switch ? VIEWS[view](chart) : [chart.x.log, chart.y.log]);
  const scales = {x: scale(chart, "x", xLog), y: scale(chart, "y", yLog)};
  const across = Plot.scale({x: {...scales.x, range: [left, right]}});
  const guides = chart.guides || [], named = guides.filter(each => each.label && (each.axis || "x") === "x");
  const names = rows(named, across.apply, left, right), top = 26 + LINE * Math.max(0, ...names.map(([, , row]) => row + 1));
  const wanted = chart.x.ticks || (xLog === 10 ? decades(scales.x.domain).map(at => [at, figures(at)]) : null);
  const ticks = wanted && thinned(wanted, across.apply), words = new Map(ticks), xTicks = ticks && ticks.map(([at]) => at);
  const yTicks = yLog === 10 && decades(scales.y.domain), many = Math.max(3, Math.round(height / 60));
  const svg = Plot.plot({
    width, height, marginLeft: left, marginRight: width - right, marginTop: top, marginBottom: 40,
    style: {fontSize: "12px", fontFamily: "inherit", background: "none", overflow: "visible"},
    x: scales.x, y: scales.y,
    marks: [
      yTicks ? Plot.gridY(yTicks) : Plot.gridY({ticks: many}),
      axis(Plot.axisX, chart.x.label, xTicks, Math.max(3, Math.round((right - left) / 90)), at => words.get(at)),
      axis(Plot.axisY, chart.y.label, yTicks, many, figures),
      Plot.ruleY([scales.y.domain[0]], {stroke: "var(--line)"}),
      ...chart.simulated ? [Plot.text(["SIMULATED"], {frameAnchor: "middle", rotate: -18, fontSize: width / 12, fillOpacity: 0.1,
        fontWeight: 700})] : [],
      ...guides.flatMap(each => guideMarks(each, scales)),
      ...(chart.series || []).flatMap(each => seriesMarks(each, scales)),
    ],
  });
  for (const [guide, , row, start] of names) {
    const label = svg.appendChild(element("text", {x: start, y: top - 6 - row * LINE, "font-weight": guide.tone === "cap" ? 400 : 650,
      fill: colour(guide.tone), class: "guide", "text-anchor": "start"}));
    label.textContent = text(guide);
  }
  svg.setAttribute("aria-hidden", "true");
  place.replaceChildren(svg);
  return (chart.series || []).flatMap(each => each.points).filter(point => point.hover && point.y >= scales.y.domain[0])
    .map(point => ({hover: point.hover, x: svg.scale("x").apply(point.x), y: svg.scale("y").apply(point.y)}))
    .sort((a, b) => a.x - b.x);
}

function element(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function legend(chart) {
  const made = document.createElement("ul");
  made.className = "legend";
  for (const series of (chart.series || []).filter(each => each.name)) {
    const entry = made.appendChild(document.createElement("li")), stroke = colour(series.tone);
    const sample = entry.appendChild(element("svg", {width: 26, height: 12, "aria-hidden": "true"}));
    if (series.line)
      sample.append(element("line", {x1: 0, x2: 26, y1: 6, y2: 6, stroke, "stroke-width": 2, "stroke-dasharray": DASHES[series.line] || ""}));
    if (series.pale) sample.setAttribute("opacity", 0.5);
    const fill = series.marker === "ring" ? "none" : stroke;
    if (series.marker === "dot" || series.marker === "ring")
      sample.append(element("circle", {cx: 13, cy: 6, r: 4, fill, stroke, "stroke-width": 1.6}));
    else if (series.marker)
      sample.append(element("rect", {x: 9.5, y: 2.5, width: 7, height: 7, fill, ...series.marker === "diamond" && {transform: "rotate(45 13 6)"}}));
    entry.append(series.name);
  }
  return made;
}

// A chart in its place, drawn again where that changes its width.
function show(figure) {
  const chart = charts[figure.id], place = figure.querySelector(".plot"), tip = figure.querySelector(".tip");
  let view = "log load", points = [], at = -1;
  const redraw = () => { points = draw(chart, place, view); at = -1; tip.hidden = true; };
  const read = index => {
    at = Math.max(0, Math.min(index, points.length - 1));
    const point = points[at], svg = place.firstChild, k = place.clientWidth / svg.getAttribute("width");
    svg.querySelector(".read")?.remove();
    svg.append(element("circle", {class: "read", cx: point.x, cy: point.y, r: 8, fill: "none", stroke: "var(--ink)", "stroke-width": 1.5}));
    tip.replaceChildren(...point.hover.map((line, i) => Object.assign(document.createElement(i ? "span" : "b"), {textContent: line})));
    tip.hidden = false;
    tip.style.left = `${Math.max(0, Math.min(point.x * k + 12, place.clientWidth - tip.offsetWidth))}px`;
    tip.style.top = `${place.offsetTop + point.y * k + 14}px`;
  };
  const hide = () => { tip.hidden = true; place.querySelector(".read")?.remove(); at = -1; };
  place.addEventListener("pointermove", event => {
    const box = place.getBoundingClientRect(), k = place.firstChild.getAttribute("width") / box.width;
    const far = points.map(point => Math.hypot(point.x - (event.clientX - box.left) * k, point.y - (event.clientY - box.top) * k));
    const nearest = far.indexOf(Math.min(...far));
    if (nearest >= 0 && far[nearest] < NEAR) read(nearest); else hide();
  });
  place.addEventListener("pointerleave", hide);
  place.addEventListener("blur", hide);
  place.addEventListener("keydown", event => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (event.key === "Escape") hide();
    if (!step || !points.length) return;
    event.preventDefault();
    read(at + step);
  });
  const head = figure.querySelector("figcaption");
  head.append(legend(chart));
  if (chart.switch) {
    const group = Object.assign(document.createElement("div"), {className: "switch"});
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", "axes");
    for (const name of Object.keys(VIEWS)) {
      const button = group.appendChild(Object.assign(document.createElement("button"), {type: "button", textContent: name}));
      button.setAttribute("aria-pressed", name === view);
      button.addEventListener("click", () => {
        view = name;
        for (const each of group.children) each.setAttribute("aria-pressed", each === button);
        redraw();
      });
    }
    head.append(group);
  }
  let width = place.clientWidth;
  figure.redraw = redraw;
  redraw();
  new ResizeObserver(() => requestAnimationFrame(() => {
    if (place.clientWidth && place.clientWidth !== width && !matchMedia("print").matches) {
      width = place.clientWidth;
      redraw();
    }
  })).observe(place);
}

// Numbers by size, words by the alphabet, what is missing at the end.
function sorting(cell) {
  const words = cell.textContent.trim(), value = parseFloat(words.replace(/[,±×$≤]/g, ""));
  return words === "–" || !words ? [2, ""] : Number.isNaN(value) ? [1, words] : [0, value];
}
function sortable(table) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    if (!head.textContent.trim() || body.rows.length < 2) return;
    const button = Object.assign(document.createElement("button"), {type: "button"});
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const each of heads) each.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const keyed = [...body.rows].map(row => [...sorting(row.cells[column]), row]);
      keyed.sort(([k, a], [l, b]) => k - l || (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1));
      body.append(...keyed.map(([, , row]) => row));
    });
  });
}

document.querySelectorAll("figure.chart").forEach(show);
document.querySelectorAll("table.levels").forEach(sortable);
