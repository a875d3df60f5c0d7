// Optional: the page works without it. It is no inline script, so that a strict CSP can stay strict.
"use strict";
(() => {
    const board = document.getElementById("dl-board");
    if (!board) {
        return;
    }
    const EVERY = 5000;
    const LONGEST = 60000;
    const trouble = document.getElementById("dl-trouble");
    const said = document.getElementById("dl-said");
    const button = document.getElementById("dl-pause");
    const still = matchMedia("(prefers-reduced-motion: reduce)");
    let paused = false;
    let failures = 0;
    let timer = 0;
    let asking = null;

    const seen = () => document.getElementById("dl-now").textContent;

    const later = () => {
        clearTimeout(timer);
        if (!paused) {
            timer = setTimeout(look, Math.min(EVERY * 2 ** failures, LONGEST));
        }
    };

    // Find an element again by its id, or as the n-th link with the same href.
    const place = (element) => {
        if (element.id) {
            return (root) => root.querySelector(`#${CSS.escape(element.id)}`);
        }
        const same = (root) => [...root.querySelectorAll(element.localName)].filter(
            (other) => other.getAttribute("href") === element.getAttribute("href"));
        const details = element.closest("details");
        if (element.localName === "summary" && details) {
            return (root) => root.querySelector(`#${CSS.escape(details.id)} > summary`);
        }
        const n = same(board).indexOf(element);
        return (root) => same(root)[n] || same(root)[0];
    };

    const numbers = () => new Map([...board.querySelectorAll("[data-key]")].map(
        (element) => [element.dataset.key, element.textContent]));

    // The verdict without its durations: they change although nothing happened.
    const verdict = () => [...board.querySelectorAll("#dl-verdict p, .dl-finding")].map((element) => {
        const copy = element.cloneNode(true);
        copy.querySelector(".dl-since")?.remove();
        return copy.textContent.trim();
    }).join(", ");

    const show = (found) => {
        const before = numbers();
        const judged = verdict();
        const focused = board.contains(document.activeElement) ? place(document.activeElement) : null;
        board.querySelectorAll("details[open]").forEach((details) => {
            const same = found.querySelector(`#${CSS.escape(details.id)}`);
            if (same) {
                same.open = true;
            }
        });
        const scrolled = [...board.querySelectorAll(".dl-scroll")].map(
            (element) => [element.id, element.scrollTop, element.scrollLeft]);
        board.replaceChildren(...found.childNodes);
        scrolled.forEach(([id, top, left]) => document.getElementById(id)?.scrollTo(left, top));
        focused?.(board)?.focus({ preventScroll: true });
        if (verdict() !== judged) {
            said.textContent = verdict();
        }
        if (!still.matches) {
            board.querySelectorAll("[data-key]").forEach((element) => {
                const old = before.get(element.dataset.key);
                element.classList.toggle("dl-changed", old !== undefined && old !== element.textContent);
            });
        }
    };

    const complain = (text, again) => {
        trouble.textContent = `${text} ${seen()}. ${again}`;
        trouble.hidden = false;
    };

    const look = async () => {
        const selection = document.getSelection();
        const reading = selection && !selection.isCollapsed && board.contains(selection.anchorNode);
        if (document.hidden || reading) {
            later();
            return;
        }
        asking = new AbortController();
        const limit = setTimeout(() => asking.abort(), 20000);
        try {
            const answer = await fetch(location.href, { credentials: "same-origin", signal: asking.signal });
            const text = answer.ok ? await answer.text() : "";
            const found = new DOMParser().parseFromString(text, "text/html").getElementById("dl-board");
            if (paused) {
                return;
            }
            if (found) {
                failures = 0;
                trouble.hidden = true;
                show(found);
            } else {
                failures += 1;
                const out = answer.redirected || answer.status === 403;
                complain(out ? trouble.dataset.out : trouble.dataset.failed, out ? "" : trouble.dataset.again);
            }
        } catch {
            if (!paused) {
                failures += 1;
                complain(trouble.dataset.failed, trouble.dataset.again);
            }
        } finally {
            clearTimeout(limit);
            later();
        }
    };

    const tell = () => {
        button.textContent = paused ? button.dataset.resume : button.dataset.pause;
        button.setAttribute("aria-pressed", String(paused));
    };

    button.addEventListener("click", () => {
        paused = !paused;
        failures = 0;
        asking?.abort();
        tell();
        if (paused) {
            clearTimeout(timer);
        } else {
            look();
        }
    });
    // Update at once when the tab becomes visible again.
    document.addEventListener("visibilitychange", () => {
        if (!document.hidden && !paused) {
            clearTimeout(timer);
            look();
        }
    });
    button.hidden = false;
    tell();
    later();
})();
