"""The report in a real browser: it loads, sorts, filters, prints, and injects nothing."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser as browsers
import numpy as np
import pytest
from command import onepass
from PIL import Image

pytestmark = pytest.mark.slow

HOSTILE = [
    "<script>window.hacked = 1</script>",
    "</script><script>window.hacked = 2</script>",
    "<img src=x onerror='window.hacked=3'>",
    "<svg onload=alert(1)><!-- ",
    '" onmouseover="alert(1)" \'',
    "javascript:alert(1)",
    "\u202egnp.exe\u2066",
    "\u2028\u2029\x00\x1b[31m",
    "${alert(1)} {{7*7}} $data $script",
    "x" * 5000,
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes runs of three methods with probes, two seeds each; one is broken and one damaged."""
    out = tmp_path_factory.mktemp("runs")
    watched = ("--seeds", 2, "--probe", "balance", "--device", "cpu", "--json", "--out", out)
    assert onepass("run", "er", "gsa", "finetune", *watched).status == 0
    shutil.copytree(out / "er-digits-m100-s0", out / "broken")
    (out / "broken/result.json").unlink()
    shutil.copytree(out / "er-digits-m100-s0", out / "damaged")
    (out / "damaged/result.json").write_text("{")
    return out


@pytest.fixture(scope="module")
def page(runs: Path) -> str:
    return write_lines(runs, to=runs.parent / "report.html")


@pytest.fixture
def browser(page: str) -> Iterator[Any]:
    with browsers.opened() as opened:
        see(opened, page)
        yield opened


def write_lines(*paths: Path, to: Path) -> str:
    done = onepass("report", *paths, "-o", to)
    assert done.status == 0, done.err
    return to.as_uri()


def see(browser: Any, page: str) -> None:
    """Opens a page and waits until its figures are drawn."""
    browser.get(page)
    drawn = "return document.querySelectorAll('figure svg').length"
    ends = time.monotonic() + 20
    while not browser.execute_script(drawn) and time.monotonic() < ends:
        time.sleep(0.05)


def find(browser: Any, selector: str) -> Any:
    return browser.find_element("css selector", selector)


def column(browser: Any, section: str, label: str) -> list[str]:
    cells = f"#{section} tbody td[data-label='{label}']"
    return [cell.text for cell in browser.find_elements("css selector", cells)]


def sort_button(browser: Any, label: str) -> Any:
    headers = browser.find_elements("css selector", "#results thead button")
    return next(header for header in headers if header.text.split()[0] == label)


def sorted_by(browser: Any) -> dict[str, str]:
    headers = browser.find_elements("css selector", "#results thead th")
    run_line = {header.text.split()[0]: header.get_attribute("aria-sort") for header in headers}
    return {label: order for label, order in run_line.items() if order != "none"}


def wide(browser: Any) -> list[int]:
    """Returns the widths of the page and of the window."""
    return browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")


# ---- it works


def test_it_loads_without_a_word_in_the_console_and_asks_for_nothing(
    browser: Any, page: str
) -> None:
    assert browsers.console(browser) == []
    assert browsers.requests(browser) == [page]
    titles = [title.text for title in browser.find_elements("css selector", "section h2")]
    assert titles[:2] == ["Summary", "Results"]
    for figure in browser.find_elements("css selector", "figure"):
        assert figure.find_element("css selector", "svg").get_attribute("aria-label")
        assert figure.find_elements("css selector", "details summary")


def test_tables_are_sorted_by_mouse(browser: Any) -> None:
    assert sorted_by(browser) == {"accuracy": "descending"}
    best = column(browser, "results", "method")
    assert best[-1] == "finetune"
    sort_button(browser, "accuracy").click()
    assert sorted_by(browser) == {"accuracy": "ascending"}
    assert column(browser, "results", "method") == best[::-1]
    sort_button(browser, "method").click()
    assert sorted_by(browser) == {"method": "ascending"}
    assert column(browser, "results", "method") == ["er", "finetune", "gsa"]


def test_tables_are_sorted_and_filtered_by_keyboard_alone(browser: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    def press(*keys: str) -> None:
        ActionChains(browser).send_keys(*keys).perform()

    def tab_to(wanted: str) -> None:
        for _ in range(60):
            press(Keys.TAB)
            now = browser.switch_to.active_element
            if wanted in (now.text.split(" ")[0], now.get_attribute("type")):
                inside = browser.execute_script(
                    "return arguments[0].closest('section')?.id === 'results'", now
                )
                if inside:
                    return
        raise AssertionError(f"the Tab key does not lead to {wanted}")

    tab_to("search")
    press("gsa")
    assert column(browser, "results", "method") == ["gsa"]
    press(*[Keys.BACKSPACE] * 3)
    tab_to("method")
    focus = browser.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
    assert focus == "solid"
    press(Keys.ENTER)
    assert column(browser, "results", "method") == ["er", "finetune", "gsa"]
    press(Keys.SPACE)
    assert column(browser, "results", "method") == ["gsa", "finetune", "er"]
    assert browser.switch_to.active_element.text.split()[0] == "method"  # focus stays


def test_tables_are_filtered_by_words_and_by_choice(browser: Any) -> None:
    from selenium.webdriver.support.ui import Select

    search = find(browser, "#runs input[type=search]")
    search.send_keys("seed=1 GSA")
    assert column(browser, "runs", "seed") == ["1"]
    assert find(browser, "#runs [role=status]").text == "1 of 8 shown"
    search.clear()
    search.send_keys("nothing is so")
    assert column(browser, "runs", "seed") == []
    search.clear()
    search.send_keys(" ")
    states = Select(find(browser, "#runs .controls select"))
    states.select_by_visible_text("damaged")
    (run_line,) = column(browser, "runs", "state")
    assert run_line == "damaged: result.json: it is not JSON"
    states.select_by_visible_text("unfinished")
    (run_line,) = column(browser, "runs", "state")
    assert run_line == "unfinished at 146 of 146 steps"


def test_figures_follow_what_is_chosen(browser: Any) -> None:
    from selenium.webdriver.support.ui import Select

    curves = "return document.querySelectorAll('#curves polyline').length"
    assert browser.execute_script(curves) == 3
    find(browser, "#curves .legend button").click()
    time.sleep(0.3)
    assert browser.execute_script(curves) == 2
    assert find(browser, "#curves .legend button").get_attribute("aria-pressed") == "false"
    Select(find(browser, "#detail select")).select_by_value("0")
    heading = find(browser, "#detail .columns h3").text
    assert heading.startswith("er")
    assert "Balance of gradients" in find(browser, "#detail").text
    for summary in browser.find_elements("css selector", "#detail summary"):
        summary.click()
    time.sleep(0.3)
    assert len(browser.find_elements("css selector", "#detail details table")) == 6
    links = browser.find_elements("css selector", "#results td button")
    next(link for link in links if link.text == "finetune").click()
    assert find(browser, "#detail .columns h3").text.startswith("finetune")
    assert browsers.console(browser) == []


def test_only_comparable_rows_compete(runs: Path, tmp_path: Path) -> None:
    result = json.loads((runs / "er-digits-m100-s0/result.json").read_text())
    other = {"variant": "validation=0.1", "identity": "another", "accuracy": 100.0}
    held_out = {**result, **other}
    (tmp_path / "kept.jsonl").write_text(json.dumps(held_out) + "\n" + json.dumps(result) + "\n")
    page = write_lines(tmp_path / "kept.jsonl", to=tmp_path / "report.html")
    with browsers.opened() as browser:
        see(browser, page)
        settings = column(browser, "summary", "setting")
        assert settings == ["digits, memory 100, validation=0.1", "digits, memory 100"]
        assert column(browser, "summary", "second") == ["\u2013", "\u2013"]


def test_a_method_has_one_colour_in_all_settings(tmp_path: Path) -> None:
    from selenium.webdriver.support.ui import Select

    out = tmp_path / "runs"
    for memory, best in ((50, "er"), (200, "gsa")):
        chosen = ("--dataset", "synthetic", "--memory", memory, "--json", "--out", out)
        for record in onepass("run", "er", "gsa", *chosen).records:
            result = Path(record["out"]) / "result.json"
            changed = {"accuracy": 90.0 if record["method"] == best else 10.0}
            result.write_text(json.dumps({**json.loads(result.read_text()), **changed}))
    page = write_lines(out, to=tmp_path / "report.html")
    with browsers.opened() as browser:
        see(browser, page)
        colours = []
        for setting in "01":
            Select(find(browser, "#curves select")).select_by_value(setting)
            toggles = browser.find_elements("css selector", "#curves .legend button")
            swatch = "return arguments[0].querySelector('.swatch').className"
            colours.append(
                {toggle.text: browser.execute_script(swatch, toggle) for toggle in toggles}
            )
        assert colours[0] == colours[1] and len(set(colours[0].values())) == 2


def test_each_run_says_how_to_repeat_it(browser: Any) -> None:
    find(browser, "#runs summary").click()
    command = find(browser, "#runs code").text
    assert command.startswith("onepass run er --dataset digits --memory 100 --seed 0")


# ---- it is seen


def test_screens_of_all_kinds(page: str, tmp_path: Path) -> None:
    taken = {}
    for name, width, dark in (
        ("desktop", 1280, False),
        ("narrow", 390, False),
        ("dark", 1280, True),
    ):
        with browsers.opened(width, dark=dark) as browser:
            see(browser, page)
            time.sleep(0.5)
            assert wide(browser)[0] <= width, name
            assert wide(browser)[1] == width, name
            browsers.screenshot(browser, tmp_path / f"{name}.png")
            if name == "desktop":
                pdf = browsers.as_pdf(browser, tmp_path / "report.pdf")
                browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
                browsers.screenshot(browser, tmp_path / "print.png")
        taken[name] = np.asarray(Image.open(tmp_path / f"{name}.png").convert("L"))
    assert pdf.startswith(b"%PDF")
    assert pdf.count(b"/Type /Page\n") >= 2
    assert np.median(taken["desktop"]) > 200 > 60 > np.median(taken["dark"])
    for name, image in taken.items():
        assert image.std() > 5, f"{name} is blank"


def test_a_thousand_runs_open_in_seconds(runs: Path, tmp_path: Path) -> None:
    result = json.loads((runs / "er-digits-m100-s0/result.json").read_text())
    rows = [
        {**result, "variant": f"lr={n // 2}", "seed": n % 2, "state_sha256": str(n)}
        for n in range(1000)
    ]
    (tmp_path / "many.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = write_lines(tmp_path / "many.jsonl", to=tmp_path / "report.html")
    with browsers.opened() as browser:
        began = time.monotonic()
        browser.get(page)
        assert "1000" in find(browser, "#summary .tiles").text
        assert time.monotonic() - began < 10
        assert len(column(browser, "results", "method")) == 200
        find(browser, "#results .more").click()
        assert (
            browser.execute_script("return document.querySelectorAll('#results tbody tr').length")
            == 500
        )
        assert browsers.console(browser) == []


# ---- strangers' words


def hostile(runs: Path, out: Path) -> Path:
    """A run whose every text tries to inject code."""
    folder = Path(shutil.copytree(runs / "gsa-digits-m100-s0", out / HOSTILE[2].replace("/", "_")))
    result = json.loads((folder / "result.json").read_text())
    words = dict(
        zip(("method", "dataset", "dataset_identity", "gpu", "commit"), HOSTILE, strict=False)
    )
    settings = {word: word for word in HOSTILE}
    changed = {**result, **words, "variant": " ".join(HOSTILE), "settings": settings}
    (folder / "result.json").write_text(json.dumps(changed))
    run = json.loads((folder / "run.json").read_text())
    run |= {"class_names": HOSTILE, "probes": HOSTILE, "imports": HOSTILE, "onepass": HOSTILE[1]}
    (folder / "run.json").write_text(json.dumps(run))
    balance = [json.loads(line) for line in (folder / "balance.jsonl").read_text().splitlines()]
    for line in balance:
        line["a_pn"] = dict.fromkeys(HOSTILE, -1.0)
    (folder / "balance.jsonl").write_text("".join(json.dumps(line) + "\n" for line in balance))
    for place, word in enumerate(HOSTILE):
        other = Path(shutil.copytree(folder, out / f"other-{place}"))
        (other / "result.json").write_text(json.dumps({**changed, "method": word, "variant": word}))
    (out / "lines.jsonl").write_text(json.dumps({**changed, "variant": HOSTILE[0]}) + "\n")
    (out / "damaged").mkdir()
    (out / "damaged/result.json").write_text(json.dumps({**changed, "accuracy": "<script>"}))
    return out


@pytest.mark.parametrize("width", [1280, 390])
def test_a_hostile_run_injects_nothing(runs: Path, tmp_path: Path, width: int) -> None:
    (tmp_path / "runs").mkdir()
    folder = hostile(runs, tmp_path / "runs")
    page = write_lines(folder, folder / "lines.jsonl", to=tmp_path / "report.html")
    with browsers.opened(width) as browser:
        see(browser, page)
        for summary in browser.find_elements("css selector", "summary"):
            browser.execute_script("arguments[0].parentElement.open = true", summary)
        time.sleep(0.5)
        assert browser.execute_script("return window.hacked ?? null") is None
        count = "return document.querySelectorAll(arguments[0]).length"
        assert browser.execute_script(count, "script") == 2
        assert browser.execute_script(count, "img, iframe, object, embed, svg svg, [onload]") == 0
        assert browser.execute_script(count, "[onerror], [onmouseover], [style*=expression]") == 0
        links = "return [...document.querySelectorAll('[href]')].map(a => a.getAttribute('href'))"
        assert all(
            link.startswith("#") or link == "data:," for link in browser.execute_script(links)
        )
        assert HOSTILE[0] in browser.find_element("css selector", "#results").text
        everything = browser.execute_script("return document.querySelector('main').textContent")
        assert not set(everything) & set("\u202e\u2066\u2028\u2029\x00\x1b")
        assert "\\u202e" in everything
        assert browsers.console(browser) == []
        assert browsers.requests(browser) == [page]
        assert wide(browser)[0] <= width
        assert wide(browser)[1] == width
        browsers.screenshot(browser, tmp_path / "hostile.png")
