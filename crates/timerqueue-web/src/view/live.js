// Keeps the parts of the page with `data-live` up to date, and shows instants in the time zone of the browser. The page does without it.
(() => {
  const every = 5000;
  const box = document.getElementById("live");
  const local = (within) => {
    for (const time of within.querySelectorAll("time")) time.title = new Date(time.dateTime).toLocaleString();
  };
  const chosen = () => {
    const selection = getSelection();
    return selection && !selection.isCollapsed ? selection.anchorNode : null;
  };
  const renew = (fresh) => {
    for (const old of document.querySelectorAll("[data-live]")) {
      const found = fresh.getElementById(old.id);
      // What the reader is in stays as it is.
      if (!found || old.contains(document.activeElement) || old.contains(chosen())) continue;
      const open = [...old.querySelectorAll("details")].map((details) => details.open);
      const left = [...old.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
      const next = document.importNode(found, true);
      next.querySelectorAll("details").forEach((details, at) => { details.open = !!open[at]; });
      old.replaceWith(next);
      next.querySelectorAll(".scroll").forEach((box, at) => { box.scrollLeft = left[at] || 0; });
      local(next);
    }
  };
  let asking = false;
  const still = document.querySelector("[data-still]");
  const look = async () => {
    if (still || asking || document.hidden || !box.checked) return;
    asking = true;
    try {
      const answer = await fetch(location.href, { redirect: "error" });
      if (!answer.ok) throw new Error(answer.status);
      // The style is here already, and has the nonce of this page.
      const html = (await answer.text()).replace(/<style[^]*?<\/style>/, "");
      renew(new DOMParser().parseFromString(html, "text/html"));
      document.documentElement.classList.remove("stale");
    } catch {
      document.documentElement.classList.add("stale");
    } finally {
      asking = false;
    }
  };
  local(document);
  const url = new URL(location.href);
  if (url.searchParams.has("said")) {
    url.searchParams.delete("said");
    history.replaceState(null, "", url);
  }
  const goOn = document.querySelector("form[data-go-on]");
  if (goOn) setTimeout(() => goOn.requestSubmit(), 300);
  if (box) {
    box.closest("label").hidden = false;
    setInterval(look, every);
    document.addEventListener("visibilitychange", look);
    box.addEventListener("change", look);
  }
})();
