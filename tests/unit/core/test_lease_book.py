"""A channel's leases: every call in every state, and a kill at every step."""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest

from nsqpy.clock import MILLISECOND, SECOND
from nsqpy.config import Durability
from nsqpy.core.dead_letters import DeadLetterPolicy
from nsqpy.core.lease import (
    ENDED_KEPT_NS,
    ENDED_MAX,
    LEASES_MAX,
    LeaseGoneError,
    LeaseRefusedError,
)
from nsqpy.core.lease_taker import ChannelGoneError
from nsqpy.errors import StorageError
from tests.unit.core.leasing import HOUR_NS, Tenant
from tests.unit.core.node import Node
from tests.unit.storage.original_files import KillableFiles, Killed

LEASES = "data/queues/t.topic/c.channel/leases"


def node_with(count: int, **config: object) -> Node:
    """A node whose channel holds messages ``0`` to ``count - 1``, published one by one."""
    node = Node(**config)  # type: ignore[arg-type]
    make_channel(node)
    for number in range(count):
        assert node.publish("t", b"%d" % number) is None
    return node


def make_channel(node: Node) -> None:
    node.broker.topic("t")
    node.broker.create_channel("t", "c")


@pytest.fixture(params=[Durability.DISK, Durability.FSYNC, Durability.MEMORY])
def node(request: pytest.FixtureRequest) -> Node:
    """Ten messages."""
    return node_with(10, durability=request.param, mem_queue_size=4)


@pytest.fixture
def tenant(node: Node) -> Tenant:
    return Tenant(node)


def counts(node: Node) -> tuple[int, int, int]:
    """Depth, leased and finished; nothing may be anywhere else."""
    channel = node.channel("t", "c")
    channel.audit()
    return channel.depth, channel.leased_count, channel.finish_count


def drained(node: Node) -> list[tuple[bytes, int]]:
    """What a consumer gets now, with attempts."""
    consumer = node.subscribe("t", "c", ready_count=2500)
    node.settle()
    got = [(message.body, message.attempts) for message in consumer.take()]
    assert node.channel("t", "c").depth == 0
    return got


class TestCreate:
    def test_it_takes_messages_in_their_order(self, node: Node, tenant: Tenant) -> None:
        lease = tenant.take("a", 6)
        assert (lease.count, counts(node)) == (6, (4, 6, 0))
        assert tenant.read("a") == [(b"%d" % number, 1) for number in range(6)]
        assert len(tenant.stream("a")) == lease.size
        assert [body for body, _ in drained(node)] == [b"6", b"7", b"8", b"9"]

    def test_the_same_id_is_the_same_lease(self, node: Node, tenant: Tenant) -> None:
        first = tenant.take("a", 6)
        stream = tenant.stream("a")
        assert tenant.take("a", 10) is first
        assert tenant.stream("a") == stream
        assert counts(node) == (4, 6, 0)

    def test_it_lives_longer_for_that_and_never_shorter(self, tenant: Tenant) -> None:
        now_ns = tenant.node.clock.now().wall_ns
        lease = tenant.take("a", ttl_ns=HOUR_NS)
        tenant.take("a", ttl_ns=SECOND)
        assert lease.expires_ns == now_ns + HOUR_NS
        tenant.take("a", ttl_ns=2 * HOUR_NS)
        assert lease.expires_ns == now_ns + 2 * HOUR_NS

    def test_requests_for_one_id_share_what_is_being_taken(self, tenant: Tenant) -> None:
        requests = [tenant.ask("a", 4), tenant.ask("a", 6), tenant.ask("b", 2)]
        tenant.node.turn()
        requests.append(tenant.ask("a", 8))
        tenant.settle()
        a, b = (tenant.desk.find(name)[1] for name in "ab")
        assert [request.lease for request in requests] == [a, a, b, a]
        assert tenant.bodies("a") + tenant.bodies("b") == [b"%d" % n for n in range(6)]

    def test_nothing_to_take_is_no_lease(self, tenant: Tenant) -> None:
        tenant.take("a")
        request = tenant.ask("b")
        assert (request.done, request.lease, request.error) == (True, None, None)
        assert tenant.state("b") == "unknown"

    def test_who_is_patient_waits_for_messages(self, node: Node, tenant: Tenant) -> None:
        tenant.take("a")
        request = tenant.ask("b", patient=True)
        tenant.settle()
        assert not request.done
        node.publish("t", b"late")
        tenant.settle()
        assert request.lease is not None
        assert tenant.bodies("b") == [b"late"]

    def test_who_has_waited_enough_gets_nothing(self, node: Node, tenant: Tenant) -> None:
        tenant.take("a")
        request = tenant.ask("b", patient=True)
        tenant.desk.stop_waiting("t", "c", request)
        assert (request.done, request.lease) == (True, None)
        node.publish("t", b"late")
        tenant.settle()
        assert counts(node) == (1, 10, 0)

    def test_bytes_bound_it_too(self, tenant: Tenant) -> None:
        request = tenant.ask("a", max_bytes=3 * 35)
        tenant.settle()
        assert request.lease is not None
        assert tenant.bodies("a") == [b"0", b"1", b"2"]

    def test_a_message_larger_than_that_is_taken_all_the_same(self, tenant: Tenant) -> None:
        request = tenant.ask("a", max_bytes=1)
        tenant.settle()
        assert request.lease is not None
        assert request.lease.count == 1

    def test_a_pause_does_not_matter(self, node: Node, tenant: Tenant) -> None:
        node.broker.pause_channel("t", "c")
        assert tenant.take("a").count == 10

    def test_requeued_and_deferred_messages_come_as_they_are(self) -> None:
        node = node_with(3)
        node.publish("t", b"deferred", delay_ns=SECOND)
        consumer = node.subscribe("t", "c", ready_count=1)
        node.settle()
        consumer.ready(0)
        consumer.requeue(consumer.take_ids()[0])
        node.advance(2 * SECOND)
        tenant = Tenant(node)
        tenant.take("a")
        assert sorted(tenant.read("a")) == [(b"0", 2), (b"1", 1), (b"2", 1), (b"deferred", 1)]
        node.crash()
        assert sorted(tenant.read("a")) == [(b"0", 2), (b"1", 1), (b"2", 1), (b"deferred", 1)]
        assert counts(node) == (0, 4, 0)

    def test_what_is_in_flight_is_not_taken(self, node: Node, tenant: Tenant) -> None:
        consumer = node.subscribe("t", "c", ready_count=3)
        node.settle()
        consumer.ready(0)
        assert tenant.take("a").count == 7
        assert consumer.finish(*consumer.take_ids()) == []
        tenant.settle()
        assert tenant.commit("a")[0].done
        assert counts(node) == (0, 0, 10)
        node.crash()
        assert counts(node)[:2] == (0, 0)

    @pytest.mark.parametrize("name", ["c#ephemeral", "e#ephemeral"])
    def test_not_on_an_ephemeral_channel(self, node: Node, tenant: Tenant, name: str) -> None:
        node.broker.create_channel("t", name)
        with pytest.raises(LeaseRefusedError, match="EPHEMERAL_CHANNEL"):
            tenant.ask("a", channel=name)

    def test_an_id_belongs_to_one_channel(self, node: Node, tenant: Tenant) -> None:
        node.broker.create_channel("t", "other")
        tenant.take("a")
        for _ in range(2):
            with pytest.raises(LeaseRefusedError, match="LEASE_OF_OTHER_CHANNEL"):
                tenant.ask("a", channel="other")
            tenant.commit("a")

    def test_there_is_a_limit(self) -> None:
        node = node_with(0)
        tenant = Tenant(node)
        requests = [tenant.ask(f"{number}", patient=True) for number in range(LEASES_MAX)]
        with pytest.raises(LeaseRefusedError, match="TOO_MANY_LEASES"):
            tenant.ask("one more")
        assert not any(request.done for request in requests)

    def test_splits_cover_the_stream(self) -> None:
        node = node_with(0)
        for _ in range(5):
            node.publish("t", *[b"." * 1000] * 1000)
        tenant = Tenant(node)
        lease = tenant.take("a", 10_000)
        splits = lease.splits.triples()
        assert len(splits) == 5
        assert sum(count for _, _, count in splits) == 5000
        stream = tenant.stream("a")
        at = 0
        for offset, length, count in splits:
            assert offset == at
            part = stream[offset : offset + length]
            assert part.startswith(b"NQB1")
            assert count > 900
            at += length
        assert at == lease.size


def expire(tenant: Tenant) -> None:
    """Somebody else has it all since."""
    tenant.take("a", ttl_ns=SECOND)
    tenant.node.advance(2 * SECOND)
    drained(tenant.node)


# What each call answers in each state: what is raised, or what becomes of the lease.
CALLS: dict[str, Callable[[Tenant], str]] = {
    "create": lambda tenant: tenant.take("a").state,
    "read": lambda tenant: "leased" if tenant.bodies("a") else "",
    "extend": lambda tenant: tenant.extend("a")[0].state,
    "commit": lambda tenant: tenant.commit("a")[0].state,
    "release": lambda tenant: tenant.release("a")[0].state,
}
INTO: dict[str, Callable[[Tenant], object]] = {
    "unknown": lambda tenant: None,
    "leased": lambda tenant: tenant.take("a"),
    "committed": lambda tenant: (tenant.take("a"), tenant.commit("a")),
    "released": lambda tenant: (tenant.take("a"), tenant.release("a")),
    "expired": expire,
}
GONE = "gone: "
TABLE = {
    "create": ["leased", "leased", GONE + "committed", GONE + "released", GONE + "expired"],
    "read": [GONE + "unknown", "leased", GONE + "committed", GONE + "released", GONE + "expired"],
    "extend": ["unknown", "leased", "committed", "released", "expired"],
    "commit": ["unknown", "committed", "committed", "released", "expired"],
    "release": ["unknown", "released", "committed", "released", "expired"],
}


class TestStates:
    @pytest.mark.parametrize("again", [False, True], ids=["", "after a kill"])
    @pytest.mark.parametrize("state", INTO)
    @pytest.mark.parametrize("call", CALLS)
    def test_each_call_in_each_state(self, call: str, state: str, again: bool) -> None:
        tenant = Tenant(node_with(5))
        INTO[state](tenant)
        if again:
            tenant.node.crash()
            tenant.settle()
        try:
            answer = CALLS[call](tenant)
        except LeaseGoneError as gone:
            answer = GONE + gone.state
        assert answer == TABLE[call][list(INTO).index(state)]
        tenant.node.channel("t", "c").audit()

    @pytest.mark.parametrize("call", ["extend", "commit", "release"])
    @pytest.mark.parametrize("state", INTO)
    def test_what_counts_as_done(self, call: str, state: str) -> None:
        tenant = Tenant(node_with(5))
        INTO[state](tenant)
        (outcome,) = getattr(tenant, call)("a")
        wanted = {"extend": "leased", "commit": "committed", "release": "released"}[call]
        assert outcome.done is (outcome.state == wanted)

    def test_a_list_is_served_whatever_is_in_it(self, tenant: Tenant) -> None:
        tenant.take("a", 3)
        tenant.take("b", 3)
        outcomes = tenant.commit("a", "none", "b")
        assert [(found.state, found.done) for found in outcomes] == [
            ("committed", True),
            ("unknown", False),
            ("committed", True),
        ]
        assert counts(tenant.node) == (4, 0, 6)


class TestEnd:
    def test_a_commit_leaves_nothing(self, node: Node, tenant: Tenant) -> None:
        tenant.take("a", 6)
        tenant.commit("a")
        assert counts(node) == (4, 0, 6)
        assert node.files.list_directory(LEASES) == ["journal"]
        node.crash()
        assert tenant.state("a") == "committed"

    def test_a_release_puts_it_back_with_one_attempt_more(self, node: Node, tenant: Tenant) -> None:
        tenant.take("a", 6)
        tenant.release("a")
        assert counts(node) == (10, 0, 0)
        assert node.channel("t", "c").requeue_count == 6
        again = [(b"%d" % number, 2) for number in range(6)]
        assert drained(node) == [(b"%d" % number, 1) for number in range(6, 10)] + again
        assert node.files.list_directory(LEASES) == ["journal"]

    def test_it_expires_at_its_time_and_not_before(self, node: Node, tenant: Tenant) -> None:
        tenant.take("a", 6, ttl_ns=SECOND)
        node.advance(SECOND - MILLISECOND)
        assert counts(node) == (4, 6, 0)
        node.advance(MILLISECOND)
        assert counts(node) == (10, 0, 0)
        assert tenant.state("a") == "expired"
        assert node.channel("t", "c").timeout_count == 6
        assert dict(drained(node))[b"0"] == 2

    def test_an_extended_one_lives_on(self, node: Node, tenant: Tenant) -> None:
        tenant.take("a", ttl_ns=SECOND)
        (outcome,) = tenant.extend("a", ttl_ns=HOUR_NS)
        assert outcome.expires_ns == node.clock.now().wall_ns + HOUR_NS
        node.advance(HOUR_NS - SECOND)
        node.restart()
        assert tenant.state("a") == "leased"
        node.advance(SECOND)
        assert tenant.state("a") == "expired"

    def test_it_expires_while_nobody_is_there(self, node: Node, tenant: Tenant) -> None:
        tenant.take("a", ttl_ns=SECOND)
        node.clock.advance(HOUR_NS)
        node.restart()
        tenant.settle()
        assert (tenant.state("a"), counts(node)[:2]) == ("expired", (10, 0))

    def test_a_late_commit_acknowledges_what_nobody_was_given(
        self, node: Node, tenant: Tenant
    ) -> None:
        tenant.take("a", 6, ttl_ns=SECOND)
        node.advance(2 * SECOND)
        assert [outcome.done for outcome in tenant.commit("a")] == [True]
        assert counts(node) == (4, 0, 6)
        assert tenant.state("a") == "committed"
        node.crash()
        assert tenant.state("a") == "committed"
        assert [body for body, _ in drained(node)] == [b"6", b"7", b"8", b"9"]

    def test_but_not_what_somebody_was(self, node: Node, tenant: Tenant) -> None:
        tenant.take("a", ttl_ns=SECOND)
        node.advance(2 * SECOND)
        consumer = node.subscribe("t", "c", ready_count=3)
        node.settle()
        (outcome,) = tenant.commit("a")
        assert (outcome.done, outcome.state, outcome.acknowledged) == (False, "expired", 7)
        assert consumer.finish(*consumer.take_ids()) == []
        node.settle()
        assert counts(node) == (0, 0, 10)
        assert tenant.commit("a")[0].acknowledged == 0

    @pytest.mark.parametrize("call", ["read", "extend", "release", "create"])
    def test_nor_once_somebody_knows_that_it_expired(
        self, node: Node, tenant: Tenant, call: str
    ) -> None:
        tenant.take("a", ttl_ns=SECOND)
        node.advance(2 * SECOND)
        with suppress(LeaseGoneError):
            CALLS[call](tenant)
        (outcome,) = tenant.commit("a")
        assert (outcome.done, outcome.acknowledged) == (False, 0)
        assert counts(node) == (10, 0, 0)

    def test_a_commit_between_the_steps_of_a_return(self) -> None:
        node = node_with(0)
        node.publish("t", *[b"%d" % number for number in range(10_000)])
        tenant = Tenant(node)
        tenant.take("a", 10_000, ttl_ns=SECOND)
        node.clock.advance(2 * SECOND)
        for _ in range(4):
            node.turn()
        depth, leased, _ = counts(node)
        assert depth > 0
        assert leased > 0
        assert depth + leased == 10_000
        assert tenant.commit("a")[0].done
        assert counts(node) == (0, 0, 10_000)
        assert node.files.list_directory(LEASES) == ["journal"]

    def test_ended_ids_are_remembered_for_a_day(self, node: Node, tenant: Tenant) -> None:
        tenant.take("a", 2)
        tenant.commit("a")
        node.clock.advance(ENDED_KEPT_NS - SECOND)
        tenant.take("b", 2)
        tenant.commit("b")
        assert tenant.state("a") == "committed"
        node.clock.advance(2 * SECOND)
        tenant.take("c", 2)
        tenant.commit("c")
        assert [tenant.state(name) for name in "abc"] == ["unknown", "committed", "committed"]
        node.crash()
        assert [tenant.state(name) for name in "abc"] == ["unknown", "committed", "committed"]
        assert tenant.take("a", 2).count == 2

    def test_no_more_than_so_many(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert ENDED_MAX == 10_000
        monkeypatch.setattr("nsqpy.core.lease_roll.ENDED_MAX", 3)
        node = node_with(10)
        tenant = Tenant(node)
        for name in "abcde":
            tenant.take(name, 1)
            tenant.commit(name)
        states = ["unknown", "unknown", "committed", "committed", "committed"]
        assert [tenant.state(name) for name in "abcde"] == states


class TestReads:
    def test_whole_reads_are_counted(self, tenant: Tenant) -> None:
        lease = tenant.take("a")
        book, _ = tenant.desk.find("a")
        now = tenant.node.clock.now()
        third = lease.size // 3
        for offset, length in [(0, third), (2 * third, lease.size - 2 * third), (0, third)]:
            book.note_read(lease, offset, length, now)
        assert lease.reads == 0
        tenant.node.restart()
        book, lease = tenant.desk.find("a")
        assert lease.reads == 0
        book.note_read(lease, third - 1, third + 1, now)
        assert lease.reads == 1
        tenant.node.restart()
        book, lease = tenant.desk.find("a")
        book.note_read(lease, 0, lease.size, now)
        assert lease.reads == 2


class TestDamage:
    def test_before_the_channel_let_go_of_what_is_in_it(self) -> None:
        node = node_with(10)
        request = Tenant(node).ask("a", 6)
        while not request.done:
            node.turn()
        (path,) = [
            path
            for path in node.files.paths(".segment")
            if path.startswith(LEASES) and f"{LEASES}/journal" not in path
        ]
        node.files.content(path)[-1] ^= 1
        node.crash()
        node.settle()
        assert node.channel("t", "c").leased_count == 0
        assert {body for body, _ in drained(node)} == {b"%d" % number for number in range(10)}
        node.crash()
        node.settle()
        assert Tenant(node).state("a") == "expired"
        assert node.channel("t", "c").leased_count == 0

    def test_of_its_record_while_it_waits_to_go_back(self) -> None:
        node = node_with(10)
        Tenant(node).take("a", 6, ttl_ns=SECOND)
        node.files.fail("write", times=-1, path="c.channel/queue")
        node.advance(2 * SECOND)
        assert counts(node) == (4, 6, 0)
        (path,) = [path for path in node.files.paths(".segment") if f"{LEASES}/journal" in path]
        node.files.content(path)[100] ^= 1  # in the first block: that it was taken
        node.files.heal()
        node.crash()
        node.settle()
        assert node.channel("t", "c").leased_count == 0
        assert {body for body, _ in drained(node)} == {b"%d" % number for number in range(10)}


class TestDeadLetters:
    @pytest.fixture
    def node(self) -> Node:
        node = node_with(10)
        policy = DeadLetterPolicy(max_attempts=2, retry_delay_ns=100 * MILLISECOND)
        node.broker.set_channel_config("t", "c", policy)
        return node

    def test_a_release_is_a_failed_delivery(self, node: Node, tenant: Tenant) -> None:
        tenant.take("a")
        tenant.release("a")
        channel = node.channel("t", "c")
        channel.audit()
        assert (channel.depth, channel.deferred_count, channel.leased_count) == (0, 10, 0)
        node.advance(SECOND)
        assert tenant.take("b").count == 10
        assert [attempts for _, attempts in tenant.read("b")] == [2] * 10
        tenant.release("b")
        assert counts(node) == (0, 0, 0)
        assert node.channel("t.c.dead", "redrive").depth == 10
        letters = channel.dead_letters
        assert letters is not None
        assert letters.reasons == {"max_attempts exceeded by lease released": 10}
        node.crash()
        assert counts(node) == (0, 0, 0)


class TestEmptyAndDelete:
    def test_an_emptied_channel_has_released_its_leases(self, node: Node, tenant: Tenant) -> None:
        tenant.take("a", 3)
        request = tenant.ask("b", 3)
        node.turn()
        node.broker.empty_channel("t", "c", node.clock.now())
        tenant.settle()
        assert (request.done, request.lease) == (True, None)
        assert tenant.state("a") == "released"
        assert counts(node) == (0, 0, 0)
        assert node.files.list_directory(LEASES) == ["journal"]
        node.crash()
        assert counts(node)[:2] == (0, 0)
        assert (tenant.state("a"), tenant.state("b")) == ("released", "unknown")

    def test_they_end_when_that_was_asked_for(self, node: Node, tenant: Tenant) -> None:
        tenant.take("a", 3)
        node.clock.advance(2 * ENDED_KEPT_NS)  # and no turn: nobody does anything
        node.broker.empty_channel("t", "c", node.clock.now())
        node.publish("t", b"later")
        tenant.take("b")
        assert tenant.state("a") == "released"

    def test_nothing_is_known_of_a_deleted_one(self, node: Node, tenant: Tenant) -> None:
        tenant.take("a", 3)
        request = tenant.ask("b", 3)
        patient = tenant.ask("d", 3, patient=True)
        node.turn()
        node.broker.delete_channel("t", "c")
        tenant.settle()
        assert isinstance(request.error, ChannelGoneError)
        assert isinstance(patient.error, ChannelGoneError)
        assert tenant.state("a") == "unknown"
        node.broker.create_channel("t", "c")
        assert counts(node) == (0, 0, 0)
        node.publish("t", b"new")
        assert tenant.take("a").count == 1
        node.broker.delete_topic("t")
        assert tenant.state("a") == "unknown"

    def test_a_stop_in_the_middle_of_a_create(self, node: Node, tenant: Tenant) -> None:
        request = tenant.ask("a", 6)
        node.turn()
        node.restart()
        assert isinstance(request.error, ChannelGoneError)
        assert tenant.state("a") == "unknown"
        assert sorted(drained(node)) == [(b"%d" % number, 1) for number in range(10)]


class TestRefusals:
    def test_a_full_disk_at_the_first_step(self) -> None:
        node = node_with(10)
        tenant = Tenant(node)
        node.files.fail("write", path="leases/1", times=-1)
        request = tenant.ask("a")
        node.turn()
        assert isinstance(request.error, StorageError)
        assert counts(node) == (10, 0, 0)
        node.files.heal()
        assert tenant.take("a").count == 10

    def test_a_full_disk_later_cuts_it_short(self) -> None:
        node = node_with(0)
        node.publish("t", *[b"%d" % number for number in range(5000)])
        tenant = Tenant(node)
        node.files.fail("write", path="leases/1", skip=1, times=1)
        lease = tenant.take("a", 5000)
        assert 0 < lease.count < 5000
        assert counts(node) == (5000 - lease.count, lease.count, 0)

    def test_a_full_disk_at_the_record(self) -> None:
        node = node_with(10)
        tenant = Tenant(node)
        node.files.fail("write", path="leases/journal", times=-1)
        request = tenant.ask("a")
        for _ in range(3):
            node.turn()
        assert isinstance(request.error, StorageError)
        assert node.broker.health != "OK"
        assert counts(node) == (0, 10, 0)
        again = tenant.ask("a")
        node.files.heal()
        node.advance(SECOND)
        assert again.lease is not None
        assert tenant.bodies("a") == [b"%d" % number for number in range(10)]
        node.crash()
        assert counts(node) == (0, 10, 0)

    def test_a_full_disk_at_the_end(self) -> None:
        node = node_with(10)
        tenant = Tenant(node)
        tenant.take("a")
        node.files.fail("write", path="leases/journal", times=-1)
        with pytest.raises(StorageError):
            tenant.commit("a")
        with pytest.raises(StorageError):
            tenant.release("a")
        assert (tenant.state("a"), counts(node)) == ("leased", (0, 10, 0))
        node.files.heal()
        assert tenant.commit("a")[0].done

    def test_a_full_disk_when_it_goes_back(self) -> None:
        node = node_with(10)
        tenant = Tenant(node)
        tenant.take("a")
        node.files.fail("write", path="c.channel/queue", times=-1)
        tenant.release("a")
        assert counts(node) == (0, 10, 0)
        node.files.heal()
        node.advance(SECOND)
        assert counts(node) == (10, 0, 0)

    def test_a_sync_that_fails(self) -> None:
        node = node_with(10, durability=Durability.FSYNC)
        tenant = Tenant(node)
        request = tenant.ask("a")
        node.settle()
        node.files.fail("sync", times=1)
        work = node.broker.begin_sync()
        with pytest.raises(StorageError) as caught:
            work.run()
        node.broker.end_sync(work, caught.value)
        node.settle()
        assert request.error is caught.value
        node.advance(SECOND)
        tenant.settle()
        assert tenant.take("a").count == 10
        assert counts(node) == (0, 10, 0)


# -- kills ---------------------------------------------------------------------------------------

SMALL = {"mem_queue_size": 3, "max_bytes_per_file": 200}


def killable_node(files: KillableFiles) -> Node:
    node = Node(files, **SMALL)
    make_channel(node)
    return node


def run_life(node: Node, end: str, created: list[str], ended: list[str]) -> None:
    """A lease from beginning to end; the lists take what has been answered."""
    for number in range(12):
        assert node.publish("t", b"%d" % number) is None
    tenant = Tenant(node)
    tenant.take("a", 8, ttl_ns=SECOND)
    created.append("a")
    if end == "commit":
        tenant.commit("a")
    elif end == "release":
        tenant.release("a")
    else:
        node.advance(2 * SECOND)
    ended.append("a")


def everywhere(node: Node) -> Counter[bytes]:
    """Each message that somebody would still get, and how often."""
    tenant = Tenant(node)
    found: Counter[bytes] = Counter()
    if tenant.state("a") == "leased":
        found.update(tenant.bodies("a"))
    found.update(body for body, _ in drained(node))
    return found


@pytest.mark.parametrize("end", ["commit", "release", "expire"])
def test_a_kill_at_any_moment_loses_nothing(end: str) -> None:
    whole = KillableFiles()
    node = killable_node(whole)
    begun = whole.operations
    run_life(node, end, [], [])
    assert whole.operations > begun + 40
    for moment in range(begun, whole.operations):
        files = KillableFiles()
        node = killable_node(files)
        files.kill_at = moment
        created: list[str] = []
        ended: list[str] = []
        published = 0
        with pytest.raises(Killed):
            run_life(node, end, created, ended)
        published = node.broker.topics["t"].message_count
        # Killed again as it mends, then left in peace.
        again = files.restarted()
        again.kill_at = moment // 4
        with suppress(Killed):
            settled(Node(again, **SMALL))
        last = settled(Node(again.restarted(), **SMALL))
        check_after_kill(last, end, moment, published, created=bool(created), over=bool(ended))


def settled(node: Node) -> Node:
    Tenant(node).settle()
    return node


def check_after_kill(
    node: Node, end: str, moment: int, published: int, *, created: bool, over: bool
) -> None:
    state = Tenant(node).state("a")
    node.channel("t", "c").audit()
    found = everywhere(node)
    expected = {b"%d" % number for number in range(published)}
    taken = {b"%d" % number for number in range(8)}
    if created:
        assert state != "unknown", moment
    if over:
        assert state == {"commit": "committed", "release": "released", "expire": "expired"}[end]
    if state == "committed":
        expected -= taken
    # One may be there that had no answer yet.
    assert expected <= found.keys() <= expected | {b"%d" % published}, moment
    doubled = {body for body, times in found.items() if times > 1}
    if state in ("unknown", "leased", "committed"):
        assert not doubled, moment  # neither taking nor committing leaves two of anything
    else:
        assert doubled <= taken, moment  # going back is a move from log to log
