// Asks the page's own server how the run goes, twice a second. A level that has ended, or the end of the run, brings the
// page anew: with the same details open and the same axes.
"use strict";
const live = document.getElementById("live"), KEPT = "knee-live";
const paragraph = live.querySelector("p b"), cards = live.querySelector(".answer"), remark = live.querySelector(".soft");
let lost = 0;

function fill({head, facts, note}) {
  paragraph.textContent = head;
  remark.textContent = note;
  cards.replaceChildren(...facts.map(([label, value, detail]) => {
    const card = document.createElement("div");
    for (const [tag, name, words] of [["dt", "", label], ["dd", "value", value], ["dd", "detail", detail]])
      card.append(Object.assign(document.createElement(tag), {className: name, textContent: words}));
    return card;
  }));
}

function keep() {
  const open = [...document.querySelectorAll("details[open]")].map(each => each.id);
  const axes = [...document.querySelectorAll(".chart")].map(each => [each.id, each.querySelector("[aria-pressed=true]")?.textContent]);
  sessionStorage.setItem(KEPT, JSON.stringify({open, axes, at: scrollY}));
}

function restore() {
  const {open = [], axes = [], at = 0} = JSON.parse(sessionStorage.getItem(KEPT) || "{}");
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  for (const [id, name] of axes)
    [...document.getElementById(id)?.querySelectorAll(".switch button") ?? []].find(each => each.textContent === name)?.click();
  scrollTo(0, at);
}

async function look() {
  try {
    const now = await (await fetch("now", {cache: "no-store"})).json();
    lost = 0;
    if (now.version !== live.dataset.version) {
      keep();
      location.reload();
      return;
    }
    fill(now);
  } catch {
    if (++lost > 3) {
      paragraph.textContent = "The run has ended, or its process was killed: knee report DIR makes its page";
      return;
    }
  }
  setTimeout(look, 500);
}

restore();
look();
