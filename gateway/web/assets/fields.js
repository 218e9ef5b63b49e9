// Errors by field: what the API says of a field of a request is shown below the inputs it comes from. An element says by
// data-field which field that is.

import { el } from "./dom.js";

// clearViolations takes back what was shown.
export function clearViolations(form) {
  for (const problem of form.querySelectorAll(".violation")) problem.remove();
  for (const input of form.querySelectorAll("[aria-invalid]")) {
    input.removeAttribute("aria-invalid");
    input.removeAttribute("aria-describedby");
  }
}

// showViolations shows each violation at its field, moves the focus to the first, and returns those that have no place in the form.
export function showViolations(form, violations) {
  const placed = violations.map(({ field, description }, i) => {
    const place = placeOf(form, field);
    if (!place) return null;
    const id = `violation-${i}`;
    place.append(el("p", { class: "problem violation", id }, description));
    const input = place.querySelector("input, textarea");
    input?.setAttribute("aria-invalid", "true");
    input?.setAttribute("aria-describedby", id);
    return input ?? place.querySelector("button");
  });
  placed.find(Boolean)?.focus();
  return violations.filter((_, i) => !placed[i]);
}

// placeOf returns the shown element of a field, or of the message it is in: changes[1].label_node is of changes[1].
function placeOf(form, field) {
  const places = [...form.querySelectorAll("[data-field]")].filter((e) => e.checkVisibility());
  for (let name = field; name; name = name.slice(0, Math.max(name.lastIndexOf("."), 0))) {
    const place = places.find((e) => e.dataset.field === name);
    if (place) return place;
  }
  return undefined;
}
