// Flow: one flow.
import { Badge, Problem, html } from "/ui/static/kit.js";

export default function Flow({ flow }) {
  return html`<h1>${flow.name}</h1>
    <p><${Badge}>${flow.states.source?.state || "starting"}<//></p>
    <${Problem} error=${flow.error} />`;
}
