"""One connection's server side, spoken to in bytes."""

import json

import pytest

from nsqpy.clock import SECOND
from nsqpy.config import Durability
from nsqpy.protocol.commands import State
from tests.unit.core.node import Client, Node
from tests.unit.fakes import Received

OK = b"OK"


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def client(node: Node) -> Client:
    return Client(node)


def put(command: str, *bodies: bytes) -> bytes:
    """PUB, DPUB or MPUB as bytes."""
    sized = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    if command.startswith("MPUB"):
        count = len(bodies).to_bytes(4, "big")
        sized = (4 + len(sized)).to_bytes(4, "big") + count + sized
    return f"{command}\n".encode() + sized


def identify(**fields: object) -> bytes:
    body = json.dumps(fields).encode()
    return b"IDENTIFY\n" + len(body).to_bytes(4, "big") + body


def messages(taken: list[bytes | Received]) -> list[Received]:
    assert all(isinstance(item, Received) for item in taken), taken
    return [item for item in taken if isinstance(item, Received)]


def receive(node: Node, client: Client) -> list[Received]:
    node.settle()
    return messages(client.take())


class TestPublish:
    def test_ok_comes_after_the_write_and_not_before(self, node: Node, client: Client) -> None:
        client.send(put("PUB t", b"a"))
        assert client.take() == []
        before = node.files.write_count
        node.turn()
        assert node.files.write_count == before + 1
        assert client.take() == [OK]

    def test_each_command_gets_its_own(self, node: Node, client: Client) -> None:
        client.send(put("PUB t", b"a") * 3 + put("MPUB t", b"b", b"c") + put("DPUB t 100", b"d"))
        node.turn()
        assert client.take() == [OK] * 5
        assert node.broker.topics["t"].message_count == 6

    def test_a_delay_is_counted_from_its_arrival(self, node: Node, client: Client) -> None:
        consumer = node.subscribe("t", "c")
        client.send(put("DPUB t 1000", b"a"))
        node.advance(SECOND - 1)
        assert consumer.take() == []
        node.advance(1)
        assert consumer.take_bodies() == [b"a"]

    @pytest.mark.parametrize("verb", ["PUB", "MPUB", "DPUB"])
    def test_a_full_disk_is_said_and_ends_the_connection(
        self, node: Node, client: Client, verb: str
    ) -> None:
        node.broker.topic("t")
        node.files.fail("write")
        client.send(put(f"{verb} t{' 5' if verb == 'DPUB' else ''}", b"a"))
        node.turn()
        text = f"E_{verb}_FAILED {verb} failed No space left on device".encode()
        assert client.take() == [text]
        assert client.session.finished

    def test_what_follows_a_failed_one_is_owed_no_reply(self, node: Node, client: Client) -> None:
        node.broker.topic("t")
        node.files.fail("write")
        client.send(put("PUB t", b"a"))
        client.send(put("PUB u", b"b"))
        node.turn()
        assert len(client.take()) == 1
        client.send(b"NOP\n" + put("PUB t", b"c"))
        node.turn()
        assert client.take() == []

    def test_a_topic_that_cannot_be_made_too(self, node: Node, client: Client) -> None:
        node.files.fail("make_directory")
        client.send(put("PUB t", b"a"))
        assert client.take() == [b"E_PUB_FAILED PUB failed No space left on device"]

    def test_a_topic_that_is_deleted_meanwhile(self, node: Node, client: Client) -> None:
        client.send(put("PUB t", b"a"))
        node.broker.delete_topic("t")
        assert client.take() == [b"E_PUB_FAILED PUB failed exiting"]

    def test_what_each_connection_published_is_counted(self, node: Node, client: Client) -> None:
        client.send(put("PUB t", b"a") + put("MPUB u", b"b", b"c") + put("PUB t", b"d"))
        node.turn()
        (producer,) = node.broker.stats().producers
        assert [(one.topic, one.count) for one in producer.pub_counts] == [("t", 2), ("u", 2)]


class TestReplyOrder:
    """At ``fsync`` an OK waits for the device, and what comes later waits for the OK."""

    @pytest.fixture
    def node(self) -> Node:
        return Node(durability=Durability.FSYNC)

    def test_replies_keep_the_order_of_commands(self, node: Node, client: Client) -> None:
        client.send(put("PUB t", b"a") + b"SUB t c\n" + put("PUB t", b"b") + b"CLS\n")
        node.turn()
        assert client.take() == []
        node.sync()
        assert client.take() == [OK, OK, OK, b"CLOSE_WAIT"]

    def test_messages_and_heartbeats_do_not_wait(self, node: Node, client: Client) -> None:
        client.subscribe("t", "c", 5)
        client.send(put("PUB t", b"a"))
        node.turn()
        client.session.heartbeat()
        (message, heartbeat) = client.take()
        assert (message.body if isinstance(message, Received) else b"") == b"a"
        assert heartbeat == b"_heartbeat_"
        node.sync()
        assert client.take() == [OK]

    def test_an_error_waits_for_the_oks_before_it_and_then_ends(
        self, node: Node, client: Client
    ) -> None:
        client.send(put("PUB t", b"a") + b"WHAT\n")
        assert (client.take(), client.session.finished) == ([], False)
        node.turn()
        node.sync()
        assert client.take() == [OK, b"E_INVALID invalid command WHAT"]
        assert client.session.finished

    def test_an_answer_that_failed_waits_too(self, node: Node, client: Client) -> None:
        client.subscribe("t", "c")
        client.send(put("PUB t", b"a") + b"FIN 0000000000000000\n")
        node.turn()
        assert len(messages(client.take())) == 1
        node.sync()
        failed = b"E_FIN_FAILED FIN 0000000000000000 failed ID not in flight"
        assert client.take() == [OK, failed]

    def test_what_waits_is_counted_in_bytes(self, node: Node, client: Client) -> None:
        client.send(put("MPUB t", bytes(1000), bytes(500)) + put("PUB t", bytes(70)))
        assert client.session.unsettled_bytes >= 1570
        node.turn()
        assert client.session.unsettled_bytes >= 1570
        node.sync()
        assert client.session.unsettled_bytes == 0

    def test_a_client_that_left_is_owed_nothing(self, node: Node, client: Client) -> None:
        client.send(put("PUB t", b"a"))
        node.turn()
        client.disconnect()
        node.sync()
        assert client.take() == []
        assert node.broker.topics["t"].depth == 1


class TestConsume:
    def test_a_life_of_a_message(self, node: Node, client: Client) -> None:
        client.subscribe("t", "c", 2)
        node.publish("t", b"a")
        (message,) = messages(client.take())
        assert (message.body, message.attempts) == (b"a", 1)
        client.send(b"TOUCH " + message.id + b"\n")
        client.send(b"REQ " + message.id + b" 0\n")
        (again,) = receive(node, client)
        assert again == message._replace(attempts=2)
        client.send(b"FIN " + message.id + b"\n")
        node.settle()
        assert client.take() == []
        assert node.channel("t", "c").finish_count == 1

    @pytest.mark.parametrize("command", ["FIN", "REQ", "TOUCH"])
    def test_a_failed_answer_leaves_the_connection_open(
        self, node: Node, client: Client, command: str
    ) -> None:
        client.subscribe("t", "c")
        tail = " 0" if command == "REQ" else ""
        client.send(f"{command} {'0' * 16}{tail}\n".encode())
        text = f"E_{command}_FAILED {command} {'0' * 16} failed ID not in flight"
        assert client.take() == [text.encode()]
        assert not client.session.finished

    def test_another_ones_message(self, node: Node, client: Client) -> None:
        client.subscribe("t", "c")
        node.publish("t", b"a")
        (message,) = messages(client.take())
        other = Client(node)
        other.subscribe("t", "c", 0)
        for command, tail in ((b"FIN", b""), (b"REQ", b" 0"), (b"TOUCH", b"")):
            other.send(command + b" " + message.id + tail + b"\n")
            text = b"E_%s_FAILED %s %s failed client does not own message"
            assert other.take() == [text % (command, command, message.id)]
        client.send(b"FIN " + message.id + b"\n")
        assert client.take() == []

    def test_a_delay_beyond_the_maximum_is_clamped(self, client: Client) -> None:
        node = Node(max_req_timeout_ns=10 * SECOND)
        client = Client(node)
        client.subscribe("t", "c")
        node.publish("t", b"a")
        (message,) = messages(client.take())
        client.send(b"REQ " + message.id + b" 999999999\n")
        node.advance(10 * SECOND - 1)
        assert client.take() == []
        node.advance(1)
        assert len(messages(client.take())) == 1

    def test_rdy_out_of_range_is_fatal(self, node: Node, client: Client) -> None:
        client.subscribe("t", "c")
        client.send(b"RDY 2500\nRDY 2501\n")
        assert client.take() == [b"E_INVALID RDY count 2501 out of range 0-2500"]
        assert client.session.finished

    def test_cls_stops_the_flow_but_not_the_answers(self, node: Node, client: Client) -> None:
        client.subscribe("t", "c", 1)
        node.publish("t", b"a", b"b")
        (message,) = messages(client.take())
        client.send(b"CLS\n")
        assert client.take() == [b"CLOSE_WAIT"]
        assert client.session.state is State.CLOSING
        client.send(b"RDY 9\nFIN " + message.id + b"\n" + put("PUB t", b"c"))
        node.settle()
        assert client.take() == [OK]
        assert node.channel("t", "c").depth == 2

    def test_the_connections_timeout_counts(self, node: Node, client: Client) -> None:
        client.send(identify(msg_timeout=5000))
        assert client.take() == [OK]
        client.subscribe("t", "c")
        node.publish("t", b"a")
        node.advance(5 * SECOND - 1)
        assert len(client.take()) == 1
        node.advance(1)
        assert [message.attempts for message in messages(client.take())] == [2]

    def test_no_subscription_without_heartbeats(self, client: Client) -> None:
        client.send(identify(heartbeat_interval=-1))
        assert client.take() == [OK]
        client.send(b"SUB t c\n")
        assert client.take() == [b"E_INVALID cannot SUB with heartbeats disabled"]
        assert client.session.finished

    def test_too_many_consumers(self) -> None:
        node = Node(max_channel_consumers=1)
        Client(node).subscribe("t", "c")
        late = Client(node)
        late.send(b"SUB t c\n")
        assert late.take() == [
            b"E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 1",
        ]

    def test_a_client_that_does_not_read_is_not_sent_to(self, node: Node, client: Client) -> None:
        client.subscribe("t", "c", 5)
        client.session.set_blocked(True)
        node.publish("t", b"a")
        assert client.take() == []
        client.session.set_blocked(False)
        assert [message.body for message in receive(node, client)] == [b"a"]


class TestEnd:
    def test_leaving_gives_the_messages_back_after_their_timeout(
        self, node: Node, client: Client
    ) -> None:
        client.subscribe("t", "c", 5)
        node.publish("t", b"a")
        client.disconnect()
        other = Client(node)
        other.subscribe("t", "c", 5)
        node.advance(60 * SECOND - 1)
        assert other.take() == []
        node.advance(1)
        assert [message.attempts for message in messages(other.take())] == [2]

    def test_leaving_an_ephemeral_channel_ends_it(self, node: Node, client: Client) -> None:
        client.subscribe("t", "c#ephemeral")
        client.disconnect()
        assert node.broker.topics["t"].channels == {}

    def test_a_deleted_channel_closes_without_a_word(self, node: Node, client: Client) -> None:
        client.subscribe("t", "c")
        node.broker.delete_channel("t", "c")
        assert client.session.finished
        assert client.take() == []
        client.disconnect()

    def test_auth_is_not_enabled(self, client: Client) -> None:
        client.send(b"AUTH\n\0\0\0\x01x")
        assert client.take() == [b"E_AUTH_DISABLED AUTH disabled"]
        assert client.session.finished

    def test_the_output_is_announced(self, node: Node, client: Client) -> None:
        announced = []
        client.session.on_output = lambda: announced.append(len(client.session.out))
        client.send(b"NOP\n")
        assert announced == []
        client.send(put("PUB t", b"a"))
        node.turn()
        client.session.heartbeat()
        client.session.cut()
        assert announced == [1, 2, 2]

    def test_statistics_of_a_consumer(self, node: Node, client: Client) -> None:
        client.send(identify(client_id="me", hostname="here", user_agent="test/1", sample_rate=99))
        client.take()
        client.subscribe("t", "c", 7)
        node.publish("t", b"a", b"b", b"c")
        ids = [message.id for message in messages(client.take())]
        client.send(b"FIN %s\nREQ %s 1000\n" % (ids[0], ids[1]))
        stats = client.session.stats()
        assert (stats.client_id, stats.hostname, stats.user_agent) == ("me", "here", "test/1")
        assert (stats.state, stats.ready_count, stats.in_flight_count) == (3, 7, 1)
        assert (stats.message_count, stats.finish_count, stats.requeue_count) == (3, 1, 1)
        assert (stats.sample_rate, stats.remote_address) == (99, "peer:1")


class TestUpgrade:
    """The reply to an IDENTIFY that grants layers, and what may come before and after."""

    @pytest.fixture
    def node(self) -> Node:
        return Node(tls_cert="c.pem", tls_key="k.pem")

    def test_it_is_due_when_all_replies_are_out(self, node: Node, client: Client) -> None:
        client.send(put("PUB t", b"a") + identify(feature_negotiation=True, snappy=True))
        assert (client.session.upgrading, client.session.upgrade_due) == (True, False)
        assert client.take() == []
        node.turn()
        assert client.session.upgrade_due
        ok, reply = client.take()
        assert ok == OK
        assert isinstance(reply, bytes)
        assert json.loads(reply)["snappy"] is True

    def test_nothing_is_acted_on_until_it_is_done(self, node: Node, client: Client) -> None:
        client.send(identify(feature_negotiation=True, tls_v1=True) + put("PUB t", b"a"))
        client.send(b"nonsense\n")
        node.turn()
        assert len(client.take()) == 1
        assert "t" not in node.broker.topics
        client.session.upgraded()
        assert not client.session.upgrading
        assert not client.session.finished

    def test_a_second_one_is_refused(self, node: Node, client: Client) -> None:
        client.send(identify(feature_negotiation=True, deflate=True))
        client.take()
        client.session.upgraded()
        client.send(identify())
        assert client.take() == [b"E_INVALID cannot IDENTIFY in current state"]
        assert client.session.finished

    def test_it_is_in_the_figures(self, node: Node, client: Client) -> None:
        before = client.session.stats()
        client.send(identify(feature_negotiation=True, tls_v1=True, deflate=True))
        client.session.tls_version = "TLS1.3"
        client.session.tls_cipher_suite = "TLS_AES_128_GCM_SHA256"
        stats = client.session.stats()
        assert (before.tls, before.deflate) == (False, False)
        assert not before.tls_negotiated_protocol_is_mutual
        assert (stats.tls, stats.tls_version, stats.deflate) == (True, "TLS1.3", True)
        assert stats.tls_cipher_suite == "TLS_AES_128_GCM_SHA256"
        assert (stats.snappy, stats.tls_negotiated_protocol) == (False, "")
        assert stats.tls_negotiated_protocol_is_mutual
