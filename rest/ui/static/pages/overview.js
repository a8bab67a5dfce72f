// Overview: a card for each flow.
import { Badge, Problem, hrefOf, html } from "/ui/static/kit.js";

export default function Overview({ live }) {
  const flows = Object.values(live.flows);
  return html`<h1>Overview</h1>
    ${live.starting.map((stage) => html`<p class="quiet">A worker is starting. ${stage}</p>`)}
    ${!flows.length && html`<p class="quiet">There are no flows yet.</p>`}
    <div class="grid">${flows.map((flow) => html`<section class="card" key=${flow.name}>
      <header><h2><a href=${hrefOf(flow)}>${flow.name}</a></h2><${Badge}>${flow.states.source?.state || "starting"}<//></header>
      <${Problem} error=${flow.error} />
    </section>`)}</div>`;
}
