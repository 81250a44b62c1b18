// The third view: whether leaving early still keeps the promise of the calibration.

import { drawInputs, drawInterval, percent } from "./charts.js";
import { ask } from "./server.js";

const $ = (id) => document.getElementById(id);
const PAUSE = 1000;  // milliseconds between two looks, while the view is open

export class PromiseView {
  constructor(problem) {
    this.problem = problem;
    this.model = null;
    this.found = null;
    setInterval(() => this.model && !$("promise").hidden && this.look(), PAUSE);
  }

  use(model) {
    this.model = model;
    this.found = null;
    if (!$("promise").hidden) this.look();
  }

  draw() {
    if (this.found) this.show(this.found);
    else this.look();
  }

  async look() {
    try {
      const { models } = await (await ask("/monitor")).json();
      this.found = models[this.model.name];
      this.show(this.found);
    } catch (error) { this.problem(error.message); }
  }

  show(found) {
    for (const figure of $("promise").querySelectorAll("figure")) figure.hidden = found.audited === null;
    $("promise-inputs").textContent = found.warning ? `Unlike the calibration, ${found.warning}.` : "";
    if (found.audited === null) {
      $("promise-state").value = "not watched";
      $("promise-why").textContent = found.reason;
      return;
    }
    $("promise-state").value = state(found);
    $("promise-state").className = found.alarm ? "wrong" : "";
    $("promise-why").textContent = found.alarm ?? promise(found);
    $("promise-about").textContent = `${percent(found.share, 1)} of the requests are also answered by the last exit, when there is `
      + `time. Without a change, an alarm is ever raised with a chance of ${percent(found.delta)} at most.`
      + (found.fallen_back ? " No sample leaves early any more." : "");
    $("audited").textContent = `${found.audited.toLocaleString("en")} audited`;
    $("labeled").textContent = `${found.labeled.toLocaleString("en")} labels came back`;
    $("seen").textContent = `latest ${Math.min(found.seen, 1000).toLocaleString("en")} of ${found.seen.toLocaleString("en")} requests`;
    drawInterval($("disagreement"), found.disagreement, found.allowed, "allowed");
    drawInterval($("early"), found.early, found.early_allowed, "allowed");
    drawInterval($("lost"), found.risk, found.promised, "promised");
    drawInputs($("inputs"), found.shares, found.below, found.seen);
  }
}

function state(found) {
  if (found.alarm) return "no longer kept";
  const kept = found.promised !== null && Math.min(found.disagreement[1], found.risk[1]) <= found.promised;
  return kept ? "kept" : "no sign of a breach";
}

function promise({ promised }) {
  return promised === null ? "The policy was made for a budget and promises nothing; its answers are compared with the calibration's."
    : `Promised: leaving early costs at most ${percent(promised, 1)} of accuracy.`;
}
