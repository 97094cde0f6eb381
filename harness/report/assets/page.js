// Colours follow the style sheet, so that light, dark and paper are said once.
const figures = JSON.parse(document.getElementById("figures").textContent);
const paper = {curve: {width: 690, height: 380}, small: {width: 690, height: 240}};  // px, within A4 and Letter
function themed(layout, size) {
  const css = getComputedStyle(document.documentElement), of = name => css.getPropertyValue(name).trim();
  const axis = {gridcolor: of("--line"), linecolor: of("--line"), tickcolor: of("--line")};
  return {...layout, ...size, autosize: !size, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {color: of("--soft"), size: 12, family: getComputedStyle(document.body).fontFamily},
    hoverlabel: {align: "left", bgcolor: of("--card"), bordercolor: of("--line"), font: {color: of("--ink")}},
    modebar: {bgcolor: "rgba(0,0,0,0)", color: of("--soft"), activecolor: of("--ink")},
    xaxis: {...layout.xaxis, ...axis}, yaxis: {...layout.yaxis, ...axis}};
}
function draw(printed) {
  for (const [id, figure] of Object.entries(figures)) {
    const size = printed ? paper[id] || paper.small : undefined;
    const config = {responsive: true, displaylogo: false, displayModeBar: id === "curve" && !printed,
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]]};
    Plotly.react(id, figure.data, themed(figure.layout, size), config);
  }
}
draw(false);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(false));
matchMedia("print").addEventListener("change", event => draw(event.matches));
