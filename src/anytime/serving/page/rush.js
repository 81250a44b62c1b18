// The second view: a load of many requests, and what becomes of them.

import { drawStrip, GRADIENT, percent } from "./charts.js";
import { events } from "./server.js";

const $ = (id) => document.getElementById(id);
const SECONDS = 10;
const COMPARED = ["with-in-time", "with-right", "whole-in-time", "whole-right"];

export class RushView {
  constructor(problem) {
    this.problem = problem;
    this.model = null;
    this.stopper = null;
    $("rate").addEventListener("input", () => this.showControls());
    $("rush-deadline").addEventListener("input", () => this.showControls());
    $("start").addEventListener("click", () => this.start());
    $("stop").addEventListener("click", () => this.stopper?.abort());
    const shades = document.createElement("i");
    shades.style.background = GRADIENT;
    $("legend").replaceChildren("first exit", shades, "last exit");
  }

  // From 10 to 3,000 requests per second, and from 5 ms to 500 ms, on logarithmic scales.
  get rate() { return Math.round(10 * 300 ** (Number($("rate").value) / 100)); }

  get deadline() { return Math.round(5 * 100 ** (Number($("rush-deadline").value) / 100)); }

  use(model) {
    this.model = model;
    this.stopper?.abort();
    $("expected-card").hidden = !model.accuracy;
    for (const cell of document.querySelectorAll(".expected")) cell.hidden = !model.accuracy;
    this.showControls();
    this.reset();
  }

  showControls() {
    for (const [id, text] of [["rate", `${this.rate} requests per second`], ["rush-deadline", `${this.deadline} ms`]]) {
      $(`${id}-text`).value = text;
      $(id).setAttribute("aria-valuetext", text);
    }
  }

  reset() {
    this.reports = [];
    this.exits = new Array(this.model.exits).fill(0);
    this.last = { sent: 0, answered: 0, in_time: 0, refused: 0 };
    for (const id of ["in-time", "answered", "refused", "mean-exit", "expected", ...COMPARED]) $(id).textContent = "–";
    this.draw();
  }

  async start() {
    this.reset();
    this.problem("");
    this.stopper = new AbortController();
    $("start").disabled = true;
    $("stop").disabled = false;
    $("rush-summary").textContent = `${this.rate} requests per second, each with ${this.deadline} ms …`;
    const query = `rate=${this.rate}&seconds=${SECONDS}&deadline=${this.deadline}ms`;
    const path = `/rush?${query}&model=${encodeURIComponent(this.model.name)}`;
    try {
      for await (const { data } of events(path, { signal: this.stopper.signal })) this.take(data);
    } catch (error) {
      if (error.name !== "AbortError") this.problem(error.message);
    }
    $("start").disabled = false;
    $("stop").disabled = true;
    this.summarize();
  }

  take(report) {
    const refused = report.refused - this.last.refused;
    const total = report.exits.reduce((sum, count) => sum + count, 0) + refused;
    this.reports.push({ exits: report.exits, refused, total });
    report.exits.forEach((count, exit) => { this.exits[exit] += count; });
    this.last = report;
    const answered = Math.max(report.answered, 1);
    $("in-time").textContent = percent(report.in_time / answered, report.in_time === report.answered ? 0 : 1);
    $("answered").textContent = report.answered.toLocaleString("en");
    $("refused").textContent = report.refused.toLocaleString("en");
    const mean = (values) => this.exits.reduce((sum, count, exit) => sum + count * values(exit), 0) / answered;
    $("mean-exit").textContent = `${mean((exit) => exit + 1).toFixed(1)} of ${this.model.exits}`;
    if (this.model.accuracy) $("expected").textContent = percent(mean((exit) => this.model.accuracy[exit]), 1);
    const due = Math.max(report.sent, 1);
    $("with-in-time").textContent = percent(report.in_time / due, 1);
    $("whole-in-time").textContent = percent(report.whole / due, 1);
    if (this.model.accuracy) {
      const right = mean((exit) => this.model.accuracy[exit]);
      $("with-right").textContent = percent((right * report.in_time) / due, 1);
      $("whole-right").textContent = percent((this.model.accuracy.at(-1) * report.whole) / due, 1);
    }
    this.draw();
  }

  draw() {
    drawStrip($("strip"), this.reports, this.model.exits, SECONDS);
  }

  summarize() {
    const { sent, answered, in_time: inTime, late, refused } = this.last;
    if (!sent) return;
    const worst = late > 0 ? `, the latest ${Math.ceil(1000 * late)} ms late` : "";
    $("rush-summary").textContent = `${sent.toLocaleString("en")} requests: ${answered.toLocaleString("en")} answered, `
      + `${percent(inTime / Math.max(answered, 1), 1)} of them in time${worst}, ${refused.toLocaleString("en")} refused at once; `
      + `mean exit ${$("mean-exit").textContent}.`;
  }
}
