"""Laws of a stream's use: when it has ended, who ended it, and who else is at the session."""

from __future__ import annotations

import threading

import pytest

from drafthead.errors import RequestError
from tests import fakes

ANSWER = "a longer answer"
SIZE = len(ANSWER) + 1
TAKEN = r"^This stream ended when the session began another request or was restored; .*\.$"
ELSEWHERE = r"^The session is at work in another thread: .*\.$"


def session(k=4):
    oracle = fakes.OracleDrafter(
        answer=[*ANSWER.encode(), 256], prompt_tokens=len("user:hi;"), k=k, vocab_size=256
    )
    return fakes.session(oracle, answer=ANSWER)


@pytest.mark.parametrize("k", [1, 4, 20])
def test_a_stream_has_a_reason_with_its_last_event_and_not_before(k):
    """F6: the last pass commits several tokens, and is no end until they have all come."""
    stream = session(k).stream("hi")
    assert stream.finish_reason is None
    reasons = [stream.finish_reason for _ in stream]
    assert reasons == [None] * (SIZE - 1) + ["stop"]
    assert list(stream) == []


def test_an_answer_that_has_ended_stays_so_whatever_the_session_does_next():
    talk = session()
    stream = talk.stream("hi")
    list(stream)
    talk.generate("hi")
    assert list(stream) == []
    assert stream.finish_reason == "stop"


@pytest.mark.parametrize("events", range(1, SIZE))
def test_a_stream_whose_session_went_on_says_so_each_time(events):
    """In the middle of a pass, too, whose tokens are known already."""
    talk = session()
    old = talk.stream("hi")
    for _ in range(events):
        next(old)
    new = talk.stream("hi")
    first = next(new)
    for _ in range(2):
        with pytest.raises(RequestError, match=TAKEN):
            next(old)
    assert old.finish_reason is None
    assert "".join([first.text, *(event.text for event in new)]) == ANSWER


def test_a_closed_stream_gives_no_event_and_has_no_reason():
    talk = session()
    with talk.stream("hi") as stream:
        next(stream)
    assert list(stream) == []
    assert stream.finish_reason is None
    unused = talk.stream("hi")
    unused.close()
    unused.close()
    assert list(unused) == []
    assert talk.generate("hi").text == ANSWER


class Waiting:
    """A session whose second pass waits in a thread of its own."""

    def __init__(self):
        self.session = session()
        self.inside, self.go, self.text = threading.Event(), threading.Event(), None
        self.stream = self.session.stream("hi")
        forward, passes = self.session.backbone.forward, []

        def slow(*args, **how):
            passes.append(1)
            if len(passes) == 2:
                self.inside.set()
                assert self.go.wait(60)
            return forward(*args, **how)

        self.session.backbone.forward = slow
        self.thread = threading.Thread(target=self.answer)

    def answer(self):
        self.text = "".join(event.text for event in self.stream)

    def __enter__(self):
        self.thread.start()
        assert self.inside.wait(60)
        return self

    def __exit__(self, *_):
        self.go.set()
        self.thread.join(60)


@pytest.mark.parametrize(
    "use",
    [
        lambda at: at.session.generate("hi"),
        lambda at: at.session.using(fakes.RandomDrafter()).generate("hi"),
        lambda at: next(at.session.stream("other")),
        lambda at: next(at.stream),
        lambda at: at.session.forget(),
        lambda at: at.session.save("never-written"),
        lambda at: at.session.restore("never-read"),
    ],
)
def test_what_another_thread_asks_for_meanwhile_is_refused_in_one_sentence(use):
    """And the answer under way is none the worse."""
    with Waiting() as at:
        for _ in range(2):
            with pytest.raises(RequestError, match=ELSEWHERE):
                use(at)
    assert at.text == ANSWER
    assert at.session.generate("hi").text == ANSWER


def test_another_thread_may_close_a_stream():
    """The pass under way is finished; then no event comes."""
    with Waiting() as at:
        at.stream.close()
    assert ANSWER.startswith(at.text) and at.text != ANSWER
    assert at.stream.finish_reason is None
    assert at.session.generate("hi").text == ANSWER


def test_two_threads_that_answer_in_turns_get_the_whole_text_or_one_of_two_sentences():
    """Never a wrong text, and no other error."""
    talk, texts, said = session(), [], []

    def answer():
        try:
            texts.append(talk.generate("hi").text)
        except RequestError as error:
            said.append(str(error))

    def answers():
        for _ in range(200):
            answer()

    threads = [threading.Thread(target=answers) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(texts) + len(said) == 600
    assert set(texts) <= {ANSWER}
    assert {one.split(":")[0].split(";")[0] for one in said} <= {
        "The session is at work in another thread",
        "This stream ended when the session began another request or was restored",
    }
