// A small chart over time, drawn by uPlot, which is loaded with the first chart.
import { html, useEffect, useRef } from "/ui/static/kit.js";

let loading = null;

function uplot() {
  loading ||= new Promise((resolve, reject) => {
    const style = Object.assign(document.createElement("link"), { rel: "stylesheet", href: "/ui/static/vendor/uplot.css" });
    const script = Object.assign(document.createElement("script"), { src: "/ui/static/vendor/uplot.js" });
    script.onload = () => resolve(window.uPlot);
    script.onerror = reject;
    document.head.append(style, script);
  });
  return loading;
}

const HEIGHT = 150;
// Seconds that a chart covers, even of a worker that has just started.
const LEAST_S = 600;
const spanned = (first, last) => [Math.min(first ?? last, last - LEAST_S), last];
const clock = (s) => new Date(s * 1000).toLocaleTimeString("sv-SE").slice(0, 5);

/** Parts that have a line of their own, and the styles' names of their colours. */
const MOST_PARTS = 5;
const colourOf = (index) => `--part-${index + 1}`;
const shownOf = (parts) => (parts.length > 1 ? parts.slice(0, MOST_PARTS) : []);

/** What the lines are, if there are several: the sum of all, and each part. */
export function Legend({ names }) {
  if (names.length < 2) return null;
  const more = names.length - MOST_PARTS;
  return html`<ul class="legend"><li><i></i>all ${names.length} workers</li>
    ${shownOf(names).map((name, index) => html`<li><i class=${`part-${index + 1}`}></i>${name}</li>`)}
    ${more > 0 && html`<li class="quiet">${more} more are in the sum only</li>`}</ul>`;
}

/**
 * `times` in ms since 1970, `values` with null where a value is not known; `format` writes one. `parts`: `{name, values}`
 * of what the values are the sum of.
 */
export function Chart({ title, times, values, parts, format }) {
  const lines = shownOf(parts);
  const data = [times.map((at) => at / 1000), values, ...lines.map((one) => one.values)];
  const place = useRef(null);
  const drawn = useRef(null);
  // Drawn again after a change of colours.
  const newestData = useRef(data);
  newestData.current = data;
  const newest = values.findLast((value) => value !== null);
  useEffect(() => {
    let isOver = false;
    const draw = async () => {
      const Plot = await uplot();
      if (isOver || !place.current) return;
      const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
      const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
      drawn.current?.destroy();
      drawn.current = new Plot(
        {
          width: place.current.clientWidth,
          height: HEIGHT,
          legend: { show: false },
          cursor: { y: false },
          scales: {
            x: { range: (_, first, last) => spanned(first, last ?? Date.now() / 1000) },
            y: { range: (_, least, most) => [0, Math.max(most || 0, 10) * 1.1] },
          },
          axes: [{ ...axis, values: (_, splits) => splits.map(clock) }, { ...axis, size: 74, values: (_, splits) => splits.map(format) }],
          series: [
            {},
            { stroke: colour("--accent"), width: 2, fill: `${colour("--accent")}22`, spanGaps: false },
            ...lines.map((_, index) => ({ stroke: colour(colourOf(index)), width: 1.5, spanGaps: false })),
          ],
        },
        newestData.current,
        place.current,
      );
    };
    draw();
    const sized = new ResizeObserver(() => drawn.current?.setSize({ width: place.current.clientWidth, height: HEIGHT }));
    sized.observe(place.current);
    const themed = new MutationObserver(draw);
    themed.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    return () => {
      isOver = true;
      sized.disconnect();
      themed.disconnect();
      drawn.current?.destroy();
      drawn.current = null;
    };
  }, [lines.map((one) => one.name).join(" ")]);
  useEffect(() => {
    drawn.current?.setData(data);
  }, [times.at(-1), times.length]);
  const text = newest === undefined ? "not known yet" : format(newest);
  return html`<figure class="chart"><figcaption>${title}: <b>${text}</b></figcaption>
    <div ref=${place} role="img" aria-label=${`${title} over the last hour, now ${text}`}></div></figure>`;
}
