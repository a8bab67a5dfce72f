// Move: the checklist of a failover, as the command would plan it now. The page changes nothing.
import { Badge, Command, Problem, Search, Table, html, useAnswer, useState } from "/ui/static/kit.js";

const TOP = 50;

/** The group in the address `#/flow/us->eu/move?group=NAME`; empty: all that the group filter selects. */
const groupOfAddress = () => new URLSearchParams(location.hash.split("?")[1] || "").get("group") || "";

const Lines = ({ lines }) =>
  lines.map(({ text, tone }) => html`<p class=${`line ${tone || ""}`}>${text.trim()}</p>`);

function Step({ step, number, children }) {
  return html`<li class="card step" aria-label=${step.name}>
    <header><h2>${number}. ${step.name}</h2><${Badge} tone=${step.tone}>${step.word}<//></header>
    <${Lines} lines=${step.lines} />
    ${children}
    ${step.command && html`<${Command} text=${step.command} />`}
  </li>`;
}

function Moves({ flow, found }) {
  const { plan, counts } = found;
  const columns = [
    ["Group", (one) => one.group],
    [`On ${flow.source}`, (one) => `${one.topic}-${one.partition}`],
    ["Offset", (one) => (one.offset < 0 ? "" : one.offset), true],
    ["Goes to", (one) => `${one.to_topic}-${one.to_partition}`],
    ["Old", (one) => one.old ?? "", true],
    ["New", (one) => (one.done ? `${one.new} (there)` : one.new), true],
    ["By", (one) => one.by],
  ];
  return html`<details open=${plan.moves.length <= 8}><summary>What moves: ${counts.moves} offsets of ${counts.ready + counts["in place"]} groups</summary>
    <${Table} caption="Offsets that move" columns=${columns} rows=${plan.moves} empty="No offset moves." />
    ${plan.moves.length < counts.moves && html`<p class="quiet">The first ${plan.moves.length} of ${counts.moves}. Choose a group to see its own.</p>`}
  </details>`;
}

export default function Move({ flow, api }) {
  const [group, setGroup] = useState(groupOfAddress());
  const [rehearse, setRehearse] = useState(false);
  const query = { part: "checkpoint", group, top: TOP, rest: location.origin, ...(rehearse && { rehearse: "true" }) };
  const answer = useAnswer(() => api.report(flow, "move", query), [group, rehearse]);
  const found = answer.data;
  const isOld = found && (found.asked[0] || "") !== group;
  const choose = (name) => {
    setRehearse(false);
    setGroup(name.trim());
  };
  if (!flow.connectors.checkpoint)
    return html`<h1>Move</h1><${Problem} error=${`${flow.name} has no MirrorCheckpointConnector on this worker, so no move can be planned here.`} />`;
  return html`<h1>Move groups from ${flow.source} to ${flow.target}</h1>
    <p>This page changes nothing. It shows what <code>heliograph failover</code> would do now, and the commands to copy:
      put your file in place of <code>mm2.properties</code>.</p>
    <${Search} label="Only group" value=${group} onSearch=${choose} />
    <div class="buttons">
      <button onClick=${answer.reload}>Dry run again</button>
      <button onClick=${() => (rehearse ? answer.reload() : setRehearse(true))}>Rehearse</button>
    </div>
    <${Problem} error=${answer.error} />
    ${(!found || isOld) && !answer.error && html`<p class="quiet" role="status">Reading both clusters...</p>`}
    ${found && !isOld && html`
      ${found.operator && html`<p class="problem" role="status">${found.operator}</p>`}
      <ol class="steps">${found.steps.map((step, index) => html`<${Step} step=${step} number=${index + 1}>
        ${index === 0 && found.plan && html`<${Moves} flow=${flow} found=${found} />`}<//>`)}</ol>
      <section class="card"><h2>What this worker cannot check</h2>
        <ul>${found.not_checked.map((each) => html`<li>${each}</li>`)}</ul></section>`}`;
}
