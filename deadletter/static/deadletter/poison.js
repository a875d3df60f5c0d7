// Comfort only: every page works without it. No inline script, so that a strict CSP can stay strict.
"use strict";
(() => {
    const all = document.querySelector(".dl-all");
    if (all) {
        all.hidden = false;
        all.addEventListener("change", () => {
            document.querySelectorAll(".dl-one").forEach((box) => { box.checked = all.checked; });
        });
    }

    if (navigator.clipboard) {
        document.querySelectorAll(".dl-copy").forEach((button) => {
            button.hidden = false;
            button.addEventListener("click", () => navigator.clipboard.writeText(button.dataset.copy));
        });
    }

    // The page of a job asks for its own middle part until nothing of it changes any more.
    const job = document.getElementById("dl-job");
    const follow = async () => {
        if (!job || job.querySelector("[data-over]")) {
            return;
        }
        // Not while a button of it has the focus: it would be lost.
        if (!document.hidden && !job.contains(document.activeElement)) {
            try {
                const answer = await fetch(job.dataset.part, { credentials: "same-origin" });
                if (answer.ok && !answer.redirected) {
                    const text = await answer.text();
                    job.replaceChildren(...new DOMParser().parseFromString(text, "text/html").body.childNodes);
                }
            } catch {
                // The next look may succeed.
            }
        }
        setTimeout(follow, 2000);
    };
    setTimeout(follow, 2000);
})();
