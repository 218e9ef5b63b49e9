// How figures are written.

const plain = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

// number writes a count. JSON has 64-bit numbers as strings.
export const number = (n) => plain.format(Number(n));

// seconds writes how long something takes or took, in ms.
export function seconds(ms) {
  const s = Math.max(0, ms) / 1000;
  if (s < 10) return `${short.format(s)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return s < 172_800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86_400)} d`;
}

// perSecond writes a count over some seconds as a rate.
export const perSecond = (count, over) => `${short.format(count / over)}/s`;

export const percent = (permille) => `${short.format(permille / 10)} %`;

// share writes a part of a whole as percents.
export const share = (part, whole) => (Number(whole) > 0 ? percent((Number(part) / Number(whole)) * 1000) : "–");

// quantity writes an amount of a resource: cpu is in thousandths, memory and storage in bytes, others in their unit.
export function quantity(name, value) {
  const n = Number(value);
  if (name === "cpu") return short.format(n / 1000);
  if (!/memory|storage|hugepages/.test(name)) return number(n);
  for (const [unit, size] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (n >= size) return `${short.format(n / size)} ${unit}`;
  }
  return `${number(n)} B`;
}

// resources writes a list of amounts.
export const resources = (list) => list.map((r) => `${r.name} ${quantity(r.name, r.value)}`).join(", ") || "nothing";

// version writes a version as Berth's logs do.
export const version = (v) => (v ? `${v.epoch}-${v.seq}` : "none yet");

// state writes the state of a pod: POD_STATE_IN_FLIGHT is "in flight".
export const state = (pod) =>
  pod.state === "POD_STATE_UNSPECIFIED" ? "not known yet" : pod.state.replace("POD_STATE_", "").replaceAll("_", " ").toLowerCase();

export const clock = (time) => time.toLocaleTimeString("en-GB");
