"""The click pipeline's own tests: the whole pipeline first, then its function alone."""

from pipelines.click_dedup import Click, ClickDedup, DropRepeats
from tidegate.testing import FunctionHarness, PipelineTest


def click(event_id: str, user: str = "ann", page: str = "/home") -> Click:
    return Click(event_id=event_id, user=user, page=page, kind="view", at_ms=1_000)


def test_each_click_is_written_once_and_repeats_go_to_their_own_sink() -> None:
    with PipelineTest(ClickDedup) as test:
        test.source(ClickDedup.clicks).push(click("1"), click("1"), click("2"), click("1"))
        assert test.sink(ClickDedup.unique).read() == [click("1"), click("2")]
        assert test.sink(ClickDedup.repeated).read() == [click("1"), click("1")]


def test_clicks_are_deduplicated_per_user_and_page() -> None:
    clicks = [click("1"), click("1", user="bob"), click("1", page="/cart")]
    with PipelineTest(ClickDedup) as test:
        test.source(ClickDedup.clicks).push(*clicks)
        assert test.sink(ClickDedup.unique).read() == clicks


def test_only_the_configured_number_of_event_ids_is_remembered() -> None:
    key = ("ann", "/home")
    with FunctionHarness(DropRepeats(remembered=2)) as harness:
        for event_id in ("1", "2", "3"):
            assert harness.push(key, click(event_id)) == [click(event_id)]
        assert harness.items(DropRepeats.seen, key) == ["2", "3"]
        assert harness.push(key, click("1")) == [click("1")]
        assert harness.push(key, click("3")) == []
        assert harness.side_output(DropRepeats.repeats) == [click("3")]
