"""Draw the pictures of the documentation again, in docs/images; ``tests/test_docs.py`` compares them.

demo.png is what whence says after 150 of the demo's 1023 trainings, beside the truth; report.png, where there is a
chromium, the page of ``whence report`` on the same runs; price.png is drawn from benchmarks/results, and
breast_cancer.png by its experiment. Pictures of benchmarks that take hours (estimators_*.png) come with their results.

python docs/pictures.py
"""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt

import whence
from whence import plots
from whence.demo import digits_set_function, seen_and_unseen, true_index

IMAGES = Path(__file__).parent / "images"


def main(folder: Path = IMAGES) -> None:
    """Train, fit, draw."""
    truth = digits_set_function(seed=0)
    runs, unseen = seen_and_unseen(truth, seed=0)
    model = whence.fit(runs)
    draw_demo(truth, unseen, model, folder / "demo.png")
    draw_report(model, folder / "report.png")
    sys.path += [str(IMAGES.parent.parent / name) for name in ("benchmarks", "experiments")]
    import breast_cancer

    import price

    price.main(folder / "price.png")
    sys.argv = ["breast_cancer.py", "--picture", str(folder / "breast_cancer.png")]
    breast_cancer.main()


def draw_demo(truth: whence.Outcomes, unseen: whence.Outcomes, model: whence.Model, path: Path) -> None:
    """Who helps, which pairs work together, and predictions of unseen runs."""
    plt.rcParams.update({"font.size": 9})
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4.4), width_ratios=[1.15, 1.1, 1])

    plots.attribution(whence.attribute(model), ax=left)
    names = [label.get_text() for label in left.get_yticklabels()]
    exact = [true_index(truth, [name]) for name in names]
    left.plot(exact, range(len(names)), "o", ms=5, mfc="white", mec="black", label="truth")
    left.set_title("Who helps, who hurts", loc="left", weight="bold")
    left.legend(frameon=False, loc="lower right")

    plots.interaction_matrix(whence.interactions(model), ax=middle)
    middle.set_title("Together or against", loc="left", weight="bold")

    linear = whence.fit(model.outcomes, surrogate=whence.AdditiveSurrogate())
    for one, colour, name in ((linear, plots.DIM, "tuned linear"), (model, plots.GOOD, "whence")):
        label = f"{name}: LDS {whence.lds(one, unseen).mean:.2f}"
        plots.predicted_vs_measured(one, unseen=unseen, color=colour, label=label, ax=right)
    right.set_title(f"{len(unseen)} unseen runs", loc="left", weight="bold")
    right.legend(frameon=False, markerscale=2, loc="lower right")

    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def draw_report(model: whence.Model, path: Path) -> None:
    """The top of the report page, as a browser shows it."""
    chromium = shutil.which("chromium")
    if chromium is None:
        print("left report.png as it is: there is no chromium")
        return
    from playwright.sync_api import sync_playwright

    with TemporaryDirectory() as folder, sync_playwright() as driver:
        whence.report(model, f"{folder}/report.html")
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1120, "height": 1045}, color_scheme="light")
        page.goto(f"file://{folder}/report.html")
        page.wait_for_timeout(1000)
        page.screenshot(path=path)
        browser.close()


if __name__ == "__main__":
    main()
