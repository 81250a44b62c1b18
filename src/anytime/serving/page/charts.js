// Two charts, drawn as SVG: accuracy against cost, and the exits of many answers over time.

const SVG = "http://www.w3.org/2000/svg";
const STOPS = [[242, 163, 58], [217, 88, 111], [138, 79, 176], [76, 79, 208]];

// The color of an exit: from amber for the first to indigo for the last.
export function color(exit, exits) {
  const place = (exits > 1 ? exit / (exits - 1) : 1) * (STOPS.length - 1);
  const low = Math.min(Math.floor(place), STOPS.length - 2);
  const mix = STOPS[low].map((a, i) => Math.round(a + (STOPS[low + 1][i] - a) * (place - low)));
  return `rgb(${mix.join(" ")})`;
}

export const GRADIENT = `linear-gradient(90deg, ${STOPS.map((stop) => `rgb(${stop.join(" ")})`).join(", ")})`;

export function percent(share, digits = 0) {
  return `${(100 * share).toFixed(digits)} %`;
}

// A round number, at least as large.
function round(value, steps = [1, 2, 5, 10]) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-9)));
  return power * steps.find((digit) => digit * power >= value * 0.999);
}

function element(parent, name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

function canvas(parent, width, height, label) {
  parent.replaceChildren();
  return element(parent, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
}

// The model's curve with all exits; `exit` is where the answer is from, null if there is none.
export function drawCurve(parent, model, exit) {
  const width = Math.max(parent.clientWidth, 280);
  const known = model.accuracy && model.accuracy.every((value) => value !== null);
  const height = known ? 260 : 76;
  const [left, right, top, bottom] = [46, width - 18, 22, height - 44];
  const total = model.macs ? model.macs.at(-1) : model.exits;
  const costs = model.macs ?? Array.from({ length: model.exits }, (_, i) => i + 1);
  const x = (cost) => left + (right - left) * (cost / total);
  const svg = canvas(parent, width, height, label(model, known, exit));
  if (known) {
    const [least, most] = [Math.min(...model.accuracy), Math.max(...model.accuracy)];
    const step = Math.max(round((most - least) / 4), 0.01);
    const [low, high] = [Math.floor(least / step) * step, Math.ceil(most / step - 1e-9) * step];
    const y = (share) => bottom - 18 - (bottom - 18 - top) * ((share - low) / Math.max(high - low, step));
    for (let share = low; share < high + step / 2; share += step) {
      element(svg, "line", { class: "grid", x1: left, x2: right, y1: y(share), y2: y(share) });
      element(svg, "text", { x: left - 8, y: y(share) + 4, "text-anchor": "end" }, percent(share));
    }
    const points = costs.map((cost, i) => `${x(cost)},${y(model.accuracy[i])}`).join(" ");
    element(svg, "polyline", { class: "line", points });
    costs.forEach((cost, i) => {
      const reached = exit !== null && i <= exit;
      const dot = element(svg, "circle", { cx: x(cost), cy: y(model.accuracy[i]), r: 5 });
      dot.setAttribute("class", reached ? "reached" : "ahead");
      if (reached) dot.style.fill = color(i, model.exits);
    });
    if (exit !== null) {
      const [cx, cy] = [x(costs[exit]), y(model.accuracy[exit])];
      element(svg, "circle", { class: "halo", cx, cy, r: 10 });
      const beside = cx > right - 130 ? { x: cx - 14, "text-anchor": "end" } : { x: cx + 14 };
      const above = cy < top + 16 ? cy + 26 : cy - 12;
      element(svg, "text", { class: "strong", ...beside, y: above }, `exit ${exit + 1}: ${percent(model.accuracy[exit], 1)}`);
    }
  }
  element(svg, "line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom });
  if (exit !== null) {
    const used = element(svg, "line", { class: "used", x1: left, x2: x(costs[exit]), y1: bottom, y2: bottom });
    used.style.stroke = color(exit, model.exits);
  }
  for (const share of width < 500 ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1]) {
    const anchor = share === 0 ? "start" : share === 1 ? "end" : "middle";
    element(svg, "text", { x: x(share * total), y: bottom + 22, "text-anchor": anchor }, percent(share));
  }
  const unit = model.macs ? `of ${(total / 1e6).toFixed(1)} million multiply-accumulates` : "of the stages";
  element(svg, "text", { x: (left + right) / 2, y: bottom + 40, "text-anchor": "middle" }, unit);
}

function label(model, known, exit) {
  const reached = exit === null ? "No answer yet." : `The answer is from exit ${exit + 1} of ${model.exits}.`;
  if (!known) return `Cost of the exits. ${reached}`;
  const [first, last] = [model.accuracy[0], model.accuracy.at(-1)];
  return `Accuracy rises from ${percent(first)} at exit 1 to ${percent(last)} at exit ${model.exits}. ${reached}`;
}

// One column for each report: how many answers came from each exit; refused ones on top, in gray.
export function drawStrip(parent, reports, exits, seconds) {
  const width = Math.max(parent.clientWidth, 280);
  const [height, left, bottom, top] = [220, 46, 190, 10];
  const svg = canvas(parent, width, height, "Exits of the answers over time; the numbers above say it in words.");
  const most = round(Math.max(1, ...reports.map((report) => report.total)), [1, 1.5, 2, 3, 4, 6, 8, 10]);
  const step = (width - left - 8) / Math.max(seconds * 10, reports.length);
  for (const share of [0, 0.5, 1]) {
    const y = bottom - (bottom - top) * share;
    element(svg, "line", { class: "grid", x1: left, x2: width - 8, y1: y, y2: y });
    element(svg, "text", { x: left - 8, y: y + 4, "text-anchor": "end" }, Math.round(most * share * 10));
  }
  element(svg, "text", { x: width - 8, y: bottom + 22, "text-anchor": "end" }, `${seconds} s`);
  element(svg, "text", { x: left, y: bottom + 22 }, "requests per second, by exit");
  reports.forEach((report, i) => {
    let y = bottom;
    const bar = (count, fill) => {
      const size = ((bottom - top) * count) / most;
      y -= size;
      const rect = element(svg, "rect", { x: left + i * step, y, width: Math.max(step - 0.6, 0.5), height: size });
      rect.style.fill = fill;
    };
    report.exits.forEach((count, exit) => count && bar(count, color(exit, exits)));
    if (report.refused) bar(report.refused, "var(--line)");
  });
}

// The bounds of a share as a bar, and the bound that was promised as a mark.
export function drawInterval(parent, [low, high], mark, name) {
  const width = Math.max(parent.clientWidth, 260);
  const [left, right, y] = [18, width - 18, 26];
  const floor = Math.min(low, 0);
  const top = Math.max(round(Math.max(low, (mark ?? 0) * 2, Math.min(high, 1))), 0.01);
  const x = (share) => left + (right - left) * Math.min(Math.max((share - floor) / (top - floor), 0), 1);
  const words = `Between ${percent(low, 1)} and ${percent(high, 1)}` + (mark === null ? "" : `; ${name}: ${percent(mark, 1)}`);
  const svg = canvas(parent, width, 72, words);
  element(svg, "line", { class: "axis", x1: left, x2: right, y1: y, y2: y });
  const bar = element(svg, "line", { class: "used", x1: x(low), x2: x(high), y1: y, y2: y });
  if (mark !== null) {
    if (low > mark) bar.style.stroke = "var(--wrong)";
    element(svg, "line", { class: "mark", x1: x(mark), x2: x(mark), y1: y - 14, y2: y + 14 });
  }
  element(svg, "text", { x: left, y: y + 34 }, `${words}.`);
}

// How sure the first exit is of the latest inputs: of each tenth of the calibration's, from unsure to sure, the share now.
export function drawInputs(parent, shares, below, seen) {
  const width = Math.max(parent.clientWidth, 260);
  const [height, left, bottom, top] = [190, 46, 150, 14];
  const before = [...below, 1].map((share, i) => share - (below[i - 1] ?? 0));
  const svg = canvas(parent, width, height, "Shares of the latest requests by how sure the first exit is; a line shows the calibration's.");
  const most = round(Math.max(0.2, ...shares));
  const y = (share) => bottom - (bottom - top) * (share / most);
  for (const share of [0, most / 2, most]) {
    element(svg, "line", { class: "grid", x1: left, x2: width - 8, y1: y(share), y2: y(share) });
    element(svg, "text", { x: left - 8, y: y(share) + 4, "text-anchor": "end" }, percent(share));
  }
  const step = (width - left - 8) / shares.length;
  shares.forEach((share, i) => {
    const at = left + i * step;
    if (seen) {
      const rect = element(svg, "rect", { x: at + 3, y: y(share), width: step - 6, height: bottom - y(share) });
      rect.style.fill = color(i, shares.length);
    }
    element(svg, "line", { class: "expected-line", x1: at + 1, x2: at + step - 1, y1: y(before[i]), y2: y(before[i]) });
  });
  element(svg, "text", { x: left, y: bottom + 24 }, "unsure");
  element(svg, "text", { x: width - 8, y: bottom + 24, "text-anchor": "end" }, "sure");
  element(svg, "text", { x: (left + width) / 2, y: bottom + 24, "text-anchor": "middle" }, "lines: the calibration");
}
