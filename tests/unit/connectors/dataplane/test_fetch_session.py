"""Fetch sessions against a broker's half of them: whatever changes in between, it fetches what is wanted."""

from hypothesis import given
from hypothesis import strategies as st

from connectors.dataplane.fetch_api import FetchSession, Position, SessionRequest

SESSION_ID = 7


class Broker:
    """A broker's session (Kafka ``FetchSession``): a full request begins it, incremental ones amend it in turn."""

    def __init__(self) -> None:
        self.partitions: dict[str, Position] = {}
        self._epoch = 0

    def fetch(self, request: SessionRequest[str]) -> int:
        """The session id that it answers with."""
        if request.epoch == 0:
            self.partitions, self._epoch = {}, 0
        assert (request.session_id, request.epoch) == (SESSION_ID if self._epoch else 0, self._epoch)
        assert set(request.forgotten) <= self.partitions.keys()
        self._epoch += 1
        self.partitions.update(request.partitions)
        for key in request.forgotten:
            del self.partitions[key]
        return SESSION_ID


steps = st.lists(
    st.one_of(
        st.tuples(st.just("want"), st.sampled_from("abc"), st.integers(0, 2)),
        st.tuples(st.just("leave"), st.sampled_from("abc"), st.just(0)),
        st.tuples(st.sampled_from(["request", "lose"]), st.just(""), st.just(0)),
    ),
    max_size=30,
)


@given(steps)
def test_the_broker_fetches_what_is_wanted(plan: list[tuple[str, str, int]]) -> None:
    session, broker = FetchSession[str](), Broker()
    wanted: dict[str, Position] = {}
    for step, key, offset in [*plan, ("request", "", 0)]:
        match step:
            case "want":
                wanted[key] = (offset, 0, -1)
                session.want(key, wanted[key])
            case "leave":
                wanted.pop(key, None)
                session.leave(key)
            case "lose":
                session.request()
                session.lost()
            case _:
                session.answered(broker.fetch(session.request()))
                assert broker.partitions == wanted
        assert session.wants_any == bool(wanted)


def test_a_request_names_only_what_has_changed() -> None:
    session = FetchSession[int]()
    for key in range(1000):
        session.want(key, (0, 0, -1))
    assert len(session.request().partitions) == 1000
    session.answered(SESSION_ID)
    session.want(3, (5, 0, 0))
    session.want(4, (0, 0, -1))
    session.leave(8)
    request = session.request()
    assert (request.partitions, request.forgotten) == ({3: (5, 0, 0)}, (8,))


def test_a_partition_that_is_wanted_again_stays_in_the_session() -> None:
    session, broker = FetchSession[str](), Broker()
    session.want("a", (0, 0, -1))
    session.answered(broker.fetch(session.request()))
    session.leave("a")
    session.want("a", (5, 0, -1))
    request = session.request()
    assert (request.partitions, request.forgotten) == ({"a": (5, 0, -1)}, ())
    broker.fetch(request)
    assert broker.partitions == {"a": (5, 0, -1)}


def test_without_a_session_every_request_is_a_full_one() -> None:
    session = FetchSession[str]()
    session.want("a", (0, 0, -1))
    for _ in range(2):
        request = session.request()
        assert (request.session_id, request.epoch, list(request.partitions)) == (0, 0, ["a"])
        session.answered(0)
