"""The daemon's side of discovery: a real broker and its ``Lookups``, against a real nsqlookupd
where it behaves, and against a scripted one where it does not."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from nsqpy.clock import MILLISECOND, SystemClock
from nsqpy.config import NsqdConfig
from nsqpy.core.broker import Broker
from nsqpy.daemon.lookup import Lookups
from nsqpy.daemon.lookup_peer import Limits
from nsqpy.net.http import json_reply
from nsqpy.protocol.lookup import (
    OK_FRAME,
    Identify,
    LookupCommand,
    Ping,
    Register,
    Unregister,
    reply_frame,
)
from nsqpy.storage.files import OSFiles
from nsqpy_lookupd.app import Lookupd
from nsqpy_lookupd.config import LookupdConfig
from tests.integration.api import make_api
from tests.integration.http_exchange import HTTPConnection
from tests.integration.scripted_lookupd import ScriptedLookupd

DEADLINE_S = 10
FAST = Limits(reply_s=30, ping_interval_s=30, retry_min_s=0.02, retry_max_s=0.1, stable_s=1)
# Where somebody does not answer. Who does may be taken for one that does not, on a busy machine.
HASTY = replace(FAST, reply_s=0.2)


class Member:
    """A broker whose turns run as in the daemon, and what keeps lookupds told of it."""

    def __init__(
        self, data_path: Path, lookupds: Sequence[str], limits: Limits = FAST, **settings: object
    ) -> None:
        defaults = NsqdConfig(
            data_path=str(data_path),
            broadcast_address="node.example",
            broadcast_tcp_port=4150,
            broadcast_http_port=4151,
            topology_zone="z",
            node_id=1,
            nsqlookupd_tcp_addresses=tuple(lookupds),
        )
        self.clock = SystemClock()
        config = replace(defaults, **settings)  # type: ignore[arg-type]
        now = self.clock.now()
        self.broker = Broker(config, OSFiles(), Random(0), wake=self._wake, start=now)
        self.broker.load(now)
        self.lookups = Lookups(self.broker, "vm", limits)

    def _wake(self) -> None:
        asyncio.get_running_loop().call_soon(lambda: self.broker.turn(self.clock.now()))

    def create(self, topic: str, *channels: str) -> None:
        self.broker.topic(topic)
        for channel in channels:
            self.broker.create_channel(topic, channel)

    async def publish(self, topic: str, body: bytes) -> None:
        """Returns when it has its OK."""
        done = asyncio.Event()
        ticket = self.broker.publish(topic, [body])
        ticket.on_done = lambda _: done.set()
        async with asyncio.timeout(DEADLINE_S):
            await done.wait()
        assert ticket.error is None

    def depths(self, topic: str) -> dict[str, int]:
        found = self.broker.topics[topic]
        return {name: channel.depth for name, channel in found.channels.items()}

    def use(self, *lookupds: str) -> None:
        """What PUT /config does."""
        self.broker.config = replace(self.broker.config, nsqlookupd_tcp_addresses=lookupds)
        self.lookups.follow_config()

    async def stop(self) -> None:
        await self.lookups.stop()
        if not self.broker.exiting:
            self.broker.close()


Join = Callable[..., Member]


@pytest.fixture
async def join(tmp_path: Path) -> AsyncIterator[Join]:
    """Make members that have started unless ``start`` is false; they are stopped at the end."""
    async with AsyncExitStack() as stack:

        def make(
            *lookupds: str, start: bool = True, name: str = "data", **settings: object
        ) -> Member:
            path = tmp_path / name
            path.mkdir(exist_ok=True)
            member = Member(path, lookupds, **settings)  # type: ignore[arg-type]
            stack.push_async_callback(member.stop)
            if start:
                member.lookups.start()
            return member

        yield make


def real_lookupd(tcp_address: str = "127.0.0.1:0") -> Lookupd:
    config = LookupdConfig(
        tcp_address=tcp_address, http_address="127.0.0.1:0", broadcast_address="127.0.0.1"
    )
    return Lookupd(config, "vm")


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await condition():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)


async def released(member: Member, topic: str) -> None:
    async def is_released() -> bool:
        return not member.broker.topics[topic].held

    await eventually(is_released)


async def get(lookupd: Lookupd, path: str) -> dict[str, object]:
    connection = await HTTPConnection.open(lookupd.http_address)
    answer = await connection.ask("GET", path)
    await connection.close()
    return dict(json.loads(answer.body))


async def wait_told(lookupd: Lookupd, directory: dict[str, list[str]]) -> None:
    """Wait until exactly these topics are known, by somebody who has them, and their channels."""

    async def told() -> bool:
        nodes = await get(lookupd, "/nodes")
        producers = nodes["producers"]
        assert isinstance(producers, list)
        found: dict[str, list[str]] = {topic: [] for node in producers for topic in node["topics"]}
        for topic in found:
            channels = (await get(lookupd, f"/channels?topic={topic}"))["channels"]
            assert isinstance(channels, list)
            found[topic] = sorted(channels)
        return found == directory

    await eventually(told)


class TestTelling:
    async def test_everything_there_is_and_who_has_it(self, join: Join) -> None:
        async with real_lookupd() as lookupd:
            member = join(lookupd.tcp_address, start=False)
            member.create("none")
            member.create("two", "a", "b#ephemeral")
            member.lookups.start()
            await wait_told(lookupd, {"none": [], "two": ["a", "b#ephemeral"]})
            producers = (await get(lookupd, "/lookup?topic=two"))["producers"]
            assert isinstance(producers, list)
            (node,) = producers
            assert {key: node[key] for key in node if key != "remote_address"} == {
                "hostname": "vm",
                "broadcast_address": "node.example",
                "tcp_port": 4150,
                "http_port": 4151,
                "version": "1.3.0",
                "topology_zone": "z",
                "topology_region": "",
            }

    async def test_more_than_goes_at_once(self, join: Join) -> None:
        async with ScriptedLookupd() as lookupd:
            member = join(lookupd.address, start=False)
            for index in range(700):
                member.create(f"t{index}")
            member.lookups.start()
            await lookupd.wait_for(lambda: len(lookupd.of(Register)) == 700)
            assert len(set(lookupd.of(Register))) == 700

    async def test_changes_in_their_order(self, join: Join) -> None:
        async with ScriptedLookupd() as lookupd:
            member = join(lookupd.address)
            await lookupd.wait_for(lambda: lookupd.of(Identify))
            await asyncio.wait_for(next(iter(member.lookups.peers)).tried.wait(), DEADLINE_S)
            member.create("t", "c")
            member.broker.delete_channel("t", "c")
            member.broker.create_channel("t", "d")
            member.broker.delete_topic("t")
            await lookupd.wait_for(lambda: Unregister("t", "") in lookupd.commands)
            assert lookupd.commands[1:] == [
                *(Register("t", ""), Register("t", "c"), Unregister("t", "c")),
                *(Register("t", "d"), Unregister("t", "d"), Unregister("t", "")),
            ]

    async def test_too_many_changes_at_once(self, join: Join) -> None:
        async with real_lookupd() as lookupd:
            member = join(lookupd.tcp_address, limits=replace(FAST, events_max=3))
            member.create("old", "c")
            await wait_told(lookupd, {"old": ["c"]})
            for index in range(9):
                member.create(f"t{index}")
            member.broker.delete_topic("old")
            await wait_told(lookupd, {f"t{index}": [] for index in range(9)})

    async def test_a_restarted_one_is_told_what_is_true_by_then(self, join: Join) -> None:
        async with real_lookupd() as lookupd:
            member = join(lookupd.tcp_address)
            member.create("old", "c")
            member.create("kept", "c")
            await wait_told(lookupd, {"old": ["c"], "kept": ["c"]})
            address = lookupd.tcp_address
        member.broker.delete_topic("old")
        member.create("new")
        async with real_lookupd(address) as lookupd:
            await wait_told(lookupd, {"kept": ["c"], "new": []})

    async def test_one_that_does_not_answer_delays_nobody(self, join: Join) -> None:
        async with ScriptedLookupd(answer=lambda _: None) as hanging, real_lookupd() as lookupd:
            member = join(hanging.address, lookupd.tcp_address, limits=HASTY)
            await hanging.wait_for(lambda: hanging.of(Identify))
            member.create("t")
            await wait_told(lookupd, {"t": []})
            # And it is tried again and again.
            await hanging.wait_for(lambda: len(hanging.connected_at_s) >= 3)

    async def test_one_that_falls_silent_is_left(self, join: Join) -> None:
        def answer(command: LookupCommand) -> bytes | None:
            silent = isinstance(command, Ping) and len(lookupd.of(Identify)) == 1
            return None if silent else lookupd.default_reply(command)

        async with ScriptedLookupd(answer=answer) as lookupd:
            member = join(lookupd.address, limits=replace(HASTY, ping_interval_s=0.05))
            member.create("t")
            await lookupd.wait_for(lambda: len(lookupd.of(Identify)) >= 2)
            await lookupd.wait_for(lambda: lookupd.commands[-1] == Ping())
            assert lookupd.of(Register)[-1] == Register("t", "")

    async def test_pings_go_on_beside_other_traffic(self, join: Join) -> None:
        async with ScriptedLookupd() as lookupd:
            member = join(lookupd.address, limits=replace(FAST, ping_interval_s=0.02))
            for index in range(20):
                member.create(f"t{index}")
                await asyncio.sleep(0.005)
            await lookupd.wait_for(lambda: len(lookupd.of(Ping)) >= 4)
            await lookupd.wait_for(lambda: len(lookupd.of(Register)) == 20)
            assert len(lookupd.connected_at_s) == 1

    @pytest.mark.parametrize(
        "reply",
        [
            reply_frame(b"E_INVALID no"),
            reply_frame(b"no JSON"),
            (-1).to_bytes(4, "big", signed=True),
            (1 << 30).to_bytes(4, "big"),
            b"",
        ],
    )
    async def test_a_bad_answer_is_met_with_patience(self, join: Join, reply: bytes) -> None:
        async with ScriptedLookupd(answer=lambda _: reply or None) as lookupd:
            limits = replace(FAST, reply_s=0.05, retry_min_s=0.04, retry_max_s=10)
            join(lookupd.address, limits=limits)
            await lookupd.wait_for(lambda: len(lookupd.connected_at_s) >= 4)
            at_s = lookupd.connected_at_s
            assert at_s[3] - at_s[2] > 0.04 * 4 * 0.5 * 0.9

    async def test_more_replies_than_questions(self, join: Join) -> None:
        def answer(command: LookupCommand) -> bytes:
            return lookupd.default_reply(command) + OK_FRAME

        async with ScriptedLookupd(answer=answer) as lookupd:
            join(lookupd.address)
            await lookupd.wait_for(lambda: len(lookupd.connected_at_s) >= 2)

    async def test_an_address_where_nobody_is(
        self, join: Join, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with ScriptedLookupd() as gone:
            address = gone.address
        (peer,) = join(address).lookups.peers
        await asyncio.wait_for(peer.tried.wait(), DEADLINE_S)
        assert f"LOOKUPD({address}): connection refused" in caplog.text

    async def test_the_same_failure_is_told_once(
        self, join: Join, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "nsqpy")
        async with ScriptedLookupd(answer=lambda _: reply_frame(b"E_INVALID no")) as lookupd:
            join(lookupd.address)
            await lookupd.wait_for(lambda: len(lookupd.connected_at_s) >= 4)
        expected = f"LOOKUPD({lookupd.address}): lookupd returned E_INVALID no"
        assert caplog.text.count(expected) == 1

    async def test_leaving(self, join: Join) -> None:
        async with real_lookupd() as lookupd:
            member = join(lookupd.tcp_address)
            member.create("t")
            await wait_told(lookupd, {"t": []})
            member.lookups.leave()
            await wait_told(lookupd, {})
            member.use(lookupd.tcp_address, "127.0.0.1:1")  # too late
            assert [peer.address for peer in member.lookups.peers] == [lookupd.tcp_address]

    async def test_having_left_it_still_asks_for_the_channels_of_a_new_topic(
        self, join: Join
    ) -> None:
        async with ScriptedLookupd("archive") as lookupd:
            member = join(lookupd.address)
            (peer,) = member.lookups.peers
            await asyncio.wait_for(peer.tried.wait(), DEADLINE_S)
            member.lookups.leave()
            await member.publish("t", b"1")
            await released(member, "t")
            assert member.depths("t") == {"archive": 1}


class TestAddresses:
    async def test_they_change_while_it_runs(self, join: Join) -> None:
        async with real_lookupd() as first, real_lookupd() as second, real_lookupd() as third:
            member = join(first.tcp_address, second.tcp_address)
            member.create("t")
            await wait_told(first, {"t": []})
            await wait_told(second, {"t": []})
            before = await get(second, "/lookup?topic=t")
            member.use(second.tcp_address, third.tcp_address)
            await wait_told(first, {})
            await wait_told(third, {"t": []})
            assert await get(second, "/lookup?topic=t") == before  # the same connection
            member.use()
            await wait_told(second, {})

    async def test_over_http(self, join: Join) -> None:
        async with real_lookupd() as lookupd:
            member = join()
            member.create("t")
            api = make_api(member.broker, member.clock, lookups=member.lookups)
            http = await HTTPConnection.open(await api.listen("127.0.0.1:0"))
            path = "/config/nsqlookupd_tcp_addresses"
            answer = await http.ask("PUT", path, json.dumps([lookupd.tcp_address]).encode())
            assert answer.status == 200
            await wait_told(lookupd, {"t": []})
            answer = await http.ask("PUT", path, b'["/a/socket"]')
            assert (answer.status, answer.body) == (400, b'{"message":"INVALID_VALUE"}')
            await http.close()
            await api.stop()

    async def test_auto_is_the_address_towards_lookupd(self, join: Join) -> None:
        async with ScriptedLookupd() as lookupd:
            member = join(lookupd.address, broadcast_address="auto", start=False)
            assert member.lookups.announced_address == "vm"
            member.lookups.start()
            await lookupd.wait_for(lambda: lookupd.of(Identify))
            (identify,) = lookupd.of(Identify)
            assert isinstance(identify, Identify)
            assert identify.info.broadcast_address == "127.0.0.1"
            assert member.lookups.announced_address == "127.0.0.1"


class TestNewTopics:
    async def test_get_the_channels_that_they_have_elsewhere(self, join: Join) -> None:
        async with real_lookupd() as lookupd:
            other = join(lookupd.tcp_address, name="other")
            other.create("t", "archive", "metrics", "tail#ephemeral")
            await wait_told(lookupd, {"t": ["archive", "metrics", "tail#ephemeral"]})
            member = join(lookupd.tcp_address)
            await member.publish("t", b"1")
            await released(member, "t")
            await member.publish("t", b"2")
            assert member.depths("t") == {"archive": 2, "metrics": 2}

    async def test_a_publisher_does_not_wait_for_the_answer(self, join: Join) -> None:
        async with ScriptedLookupd("archive") as lookupd:
            lookupd.open.clear()
            member = join(lookupd.address)
            await member.publish("t", b"1")
            member.broker.create_channel("t", "mine")
            await member.publish("t", b"2")
            await lookupd.wait_for(lambda: lookupd.asked)
            assert (member.broker.topics["t"].depth, member.depths("t")) == (2, {"mine": 0})
            lookupd.open.set()
            await released(member, "t")
            await member.publish("t", b"3")
            assert member.depths("t") == {"archive": 3, "mine": 3}

    async def test_one_that_hangs_costs_the_timeout_and_no_more(
        self, join: Join, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with ScriptedLookupd("lost") as hanging, ScriptedLookupd("archive") as lookupd:
            hanging.open.clear()
            member = join(
                hanging.address,
                lookupd.address,
                http_client_request_timeout_ns=1000 * MILLISECOND,
            )
            await member.publish("t", b"1")
            await released(member, "t")
            assert member.depths("t").keys() == {"archive"}
            expected = f"LOOKUPD({hanging.address}): cannot tell the channels of t - no answer"
            assert expected in caplog.text

    async def test_many_at_once_wait_for_one_that_answers(self, join: Join) -> None:
        async with ScriptedLookupd("archive") as lookupd:
            lookupd.delay_s = 0.1
            member = join(lookupd.address, http_client_request_timeout_ns=1500 * MILLISECOND)
            # So many that the last get their turn after the timeout.
            for index in range(320):
                member.create(f"t{index}")
            for index in range(320):
                await released(member, f"t{index}")
            found = [topic.channels.keys() for topic in member.broker.topics.values()]
            assert found == [{"archive"}] * 320

    async def test_many_at_once_give_up_on_one_that_hangs(self, join: Join) -> None:
        async with ScriptedLookupd("archive") as lookupd:
            lookupd.open.clear()
            member = join(lookupd.address, http_client_request_timeout_ns=200 * MILLISECOND)
            for index in range(200):
                member.create(f"t{index}")
            for index in range(200):
                await released(member, f"t{index}")
            assert len(lookupd.asked) <= 32  # a timeout or two, and not 200 / 16

    async def test_with_nobody_to_ask_they_start_at_once(
        self, join: Join, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with ScriptedLookupd() as gone, ScriptedLookupd(broadcast_address="") as nameless:
            address = gone.address
            await gone.__aexit__()
            member = join(address, nameless.address)
            await member.publish("t", b"1")
            await released(member, "t")
        assert "TOPIC(t): no nsqlookupd to ask for its channels" in caplog.text
        assert f"LOOKUPD({nameless.address}): no broadcast address" in caplog.text

    async def test_without_lookupd_nothing_is_held(self, join: Join) -> None:
        member = join()
        member.create("t", "c")
        assert not member.broker.topics["t"].held

    @pytest.mark.parametrize(
        "body",
        [
            *(b"", b"no JSON", b"[]", b'{"channels":5}', b"[" * 100_000),
            *(b'{"channels":[1,null,"a/b","x#ephemeral"]}', b'"' + b"x" * 300_000 + b'"'),
        ],
    )
    async def test_nonsense_is_no_channel(self, join: Join, body: bytes) -> None:
        async with ScriptedLookupd() as lookupd:
            lookupd.reply = json_reply(body)
            member = join(lookupd.address)
            await member.publish("t", b"1")
            await released(member, "t")
            assert member.depths("t") == {}

    async def test_an_answer_in_the_old_envelope(self, join: Join) -> None:
        async with ScriptedLookupd() as lookupd:
            lookupd.reply = json_reply(b'{"status_code":200,"data":{"channels":["c"]}}')
            member = join(lookupd.address)
            member.create("t")
            await released(member, "t")
            assert member.depths("t") == {"c": 0}

    async def test_who_insists_on_tls_is_asked_over_it(self, join: Join) -> None:
        first_bytes: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            first_bytes.set_result(await reader.read(1))
            writer.close()

        server = await asyncio.start_server(note, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with ScriptedLookupd() as lookupd:
            lookupd.reply = json_reply({"https_port": port}, 403)
            member = join(lookupd.address)
            member.create("t")
            assert await asyncio.wait_for(first_bytes, DEADLINE_S) == b"\x16"  # a TLS handshake
            await released(member, "t")
        server.close()

    async def test_deleted_before_the_answer(self, join: Join) -> None:
        async with ScriptedLookupd("archive") as lookupd:
            lookupd.open.clear()
            member = join(lookupd.address)
            await member.publish("t", b"1")
            await lookupd.wait_for(lambda: len(lookupd.asked) == 1)
            member.broker.delete_topic("t")
            await member.publish("t", b"2")
            await lookupd.wait_for(lambda: len(lookupd.asked) == 2)
            lookupd.open.set()
            await released(member, "t")
            await member.publish("t", b"3")
            assert member.depths("t") == {"archive": 2}

    async def test_stopped_before_the_answer_it_asks_again(self, join: Join) -> None:
        async with ScriptedLookupd("archive") as lookupd:
            lookupd.open.clear()
            member = join(lookupd.address)
            await member.publish("t", b"1")
            member.broker.create_channel("t", "mine")
            await lookupd.wait_for(lambda: lookupd.asked)
            await member.stop()
            lookupd.open.set()
            again = join(lookupd.address)
            await released(again, "t")
            await again.publish("t", b"2")
            assert again.depths("t") == {"archive": 2, "mine": 2}
