// Light or dark: as the system says, until the reader says otherwise.
import { byId } from "./elements.js";

export function followTheme() {
  byId("theme").addEventListener("click", () => {
    const systemIsDark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = document.documentElement.dataset.theme ?? (systemIsDark ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  });
}
