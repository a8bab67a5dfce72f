// Overview: where records flow, and a card for each flow, the most urgent first.
import { Badge, Figure, Problem, RatesNote, Search, Verdict, bytesRate, count, duration, hrefOf, html, time, toneOf, useState } from "/ui/static/kit.js";

const CARDS = 12;
const MOST_CLUSTERS = 10;
const URGENCY = ["error", "warning", "unknown", "ok"];
const [WIDTH, NODE] = [520, 46];

const verdictOf = (flow) => flow.overview?.verdict;
const urgencyOf = (flow) => (flow.error ? 0 : verdictOf(flow) ? URGENCY.indexOf(verdictOf(flow).urgency) : 2);

/** The most urgent first, then by lag. */
export const byUrgency = (one, other) =>
  urgencyOf(one) - urgencyOf(other) || (other.overview?.lag.records ?? 0) - (one.overview?.lag.records ?? 0);

function placed(clusters, height) {
  if (clusters.length <= 2) return new Map(clusters.map((name, index) => [name, [60 + index * (WIDTH - 120), height / 2]]));
  const [middleX, middleY] = [WIDTH / 2, height / 2];
  return new Map(clusters.map((name, index) => {
    const angle = (2 * Math.PI * index) / clusters.length - Math.PI;
    return [name, [middleX + Math.cos(angle) * (middleX - 90), middleY + Math.sin(angle) * (middleY - 30)]];
  }));
}

function Arrow({ flow, from, to }) {
  const [dx, dy] = [to[0] - from[0], to[1] - from[1]];
  const length = Math.hypot(dx, dy) || 1;
  const [ux, uy] = [dx / length, dy / length];
  // Beside the line between the centres, because the reverse flow has the other side.
  const [x1, y1] = [from[0] + ux * NODE - uy * 12, from[1] + uy * NODE + ux * 12];
  const [x2, y2] = [to[0] - ux * (NODE + 8) - uy * 12, to[1] - uy * (NODE + 8) + ux * 12];
  const tone = toneOf(verdictOf(flow)?.urgency);
  const { rates, lag } = flow.overview || {};
  const [x, y] = [(x1 + x2) / 2 - uy * 40, (y1 + y2) / 2 + ux * 23];
  return html`<a href=${hrefOf(flow)}><g class="arrow ${tone}">
    <line x1=${x1} y1=${y1} x2=${x2} y2=${y2} /><polygon points="0,-6 11,0 0,6" transform=${`translate(${x2} ${y2}) rotate(${(Math.atan2(dy, dx) * 180) / Math.PI})`} />
    <text x=${x} y=${y - 3}>${rates ? `${count(rates.records_per_s)} records/s` : flow.name}</text>
    ${lag && html`<text x=${x} y=${y + 12} class="small">lag ${count(lag.records)}</text>`}
  </g></a>`;
}

function Topology({ flows }) {
  const named = [...flows].sort((one, other) => (one.name < other.name ? 1 : -1));
  const clusters = [...new Set(named.flatMap((flow) => [flow.source, flow.target]))];
  if (clusters.length < 2 || clusters.length > MOST_CLUSTERS) return null;
  const height = clusters.length === 2 ? 110 : 260;
  const at = placed(clusters, height);
  // One arrow for each pair of clusters: the most urgent of its flows.
  const pairs = new Map([...flows].reverse().map((flow) => [`${flow.source} ${flow.target}`, flow]));
  return html`<section class="card topology"><svg viewBox=${`0 0 ${WIDTH} ${height}`} role="img" aria-label="Clusters and the flows between them">
    ${[...pairs.values()].map((flow) => html`<${Arrow} flow=${flow} from=${at.get(flow.source)} to=${at.get(flow.target)} />`)}
    ${clusters.map((name) => html`<g class="node"><rect x=${at.get(name)[0] - NODE} y=${at.get(name)[1] - 20} width=${2 * NODE} height="40" rx="10" />
      <text x=${at.get(name)[0]} y=${at.get(name)[1] + 5}>${name.length > 11 ? `${name.slice(0, 10)}…` : name}</text></g>`)}
  </svg></section>`;
}

function Card({ flow }) {
  const { overview: seen } = flow;
  const verdict = verdictOf(flow);
  return html`<section class="card flow">
    <header><h2><a href=${hrefOf(flow)}>${flow.name}</a></h2>
      <${Badge} tone=${toneOf(verdict?.urgency)}>${verdict?.state || flow.states.source?.state.toLowerCase() || "starting"}<//></header>
    <${Problem} error=${flow.error} />
    ${seen && html`
      <dl class="figures">
        <${Figure} name="Rate">${count(seen.rates.records_per_s)} <small>records/s</small><//>
        <${Figure} name="Bytes">${bytesRate(seen)}<//>
        <${Figure} name="Lag">${count(seen.lag.records)} <small>records</small><//>
        <${Figure} name="Oldest waits">${duration(seen.lag.ms)}<//>
        <${Figure} name="Not copied" tone=${seen.stopped_count ? "bad" : ""}>${count(seen.stopped_count)} <small>of ${count(seen.lag.partitions)} partitions</small><//>
      </dl>
      <${RatesNote} rates=${seen.rates} />
      <${Verdict} flow=${flow} brief />
      ${seen.oldest_problem && html`<p class="quiet">Oldest problem: ${seen.oldest_problem.source}, since ${time(seen.oldest_problem.since_ms)}. ${" "}
        <a href=${hrefOf(flow, "partitions")}>Partitions</a></p>`}`}
  </section>`;
}

export default function Overview({ live }) {
  const [text, setText] = useState("");
  const flows = Object.values(live.flows).sort(byUrgency);
  const found = flows.filter((flow) => flow.name.toLowerCase().includes(text.toLowerCase()));
  return html`<h1>Overview</h1>
    ${live.starting.map((stage) => html`<p class="quiet">A worker is starting. ${stage}</p>`)}
    ${!flows.length && html`<p class="quiet">There are no flows yet.</p>`}
    <${Topology} flows=${flows} />
    ${flows.length > CARDS && html`<${Search} label=${`The ${CARDS} most urgent of ${flows.length} flows. Find`} value=${text} onSearch=${setText} />`}
    <div class="grid">${found.slice(0, CARDS).map((flow) => html`<${Card} flow=${flow} key=${flow.name} />`)}</div>`;
}
