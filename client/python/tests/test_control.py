"""Tables, prefixes, jobs and status: what is sent, and what comes back, of both clients."""

import asyncio
import inspect
import pathlib
import unittest

from fake import Fake, answer

import skipd

PACKAGE = str(pathlib.Path(skipd.__file__).parent)
PREFIX = '{"name": "rules", "tokens": 128, "pages": 1, "held": 1, "owner": 0, "hits": 0}'
CALLS = [
    (lambda c: c.status(), '{"state": "ready"}', {"state": "ready"}, "GET /skipd/v1/status", None),
    (lambda c: c.activity(), '{"requests": []}', {"requests": []}, "GET /skipd/v1/requests", None),
    (lambda c: c.tables(), '{"prefill": {}}', {"prefill": {}}, "GET /skipd/v1/tables", None),
    (lambda c: c.tiers(), '{"prefill": []}', {"prefill": []}, "GET /skipd/v1/tiers", None),
    (lambda c: c.set_table("decode", "50%"), '{"tier": "50%"}', {"tier": "50%"}, "PUT /skipd/v1/tables/decode",
     {"selector": "50%", "persist": False, "force": False}),
    (lambda c: c.prefixes(), '{"prefixes": [], "limit_pages": 9}', {"prefixes": [], "limit_pages": 9}, "GET /skipd/v1/prefixes", None),
    (lambda c: _name(c.pin_prefix("You are", name="rules")), PREFIX, "rules", "POST /skipd/v1/prefixes",
     {"prompt": "You are", "name": "rules"}),
    (lambda c: _name(c.pin_prefix([1, 2])), PREFIX, "rules", "POST /skipd/v1/prefixes", {"prompt": [1, 2]}),
    (lambda c: _name(c.pin_prefix(messages=[{"role": "system", "content": "a"}], tools=[])), PREFIX, "rules", "POST /skipd/v1/prefixes",
     {"messages": [{"role": "system", "content": "a"}], "tools": []}),
    (lambda c: _name(c.drop_prefix("rules")), PREFIX, "rules", "DELETE /skipd/v1/prefixes/rules", None),
    (lambda c: c.jobs(), '{"jobs": [{"id": "1"}]}', [{"id": "1"}], "GET /skipd/v1/jobs", None),
    (lambda c: c.job("1"), '{"id": "1"}', {"id": "1"}, "GET /skipd/v1/jobs/1", None),
    (lambda c: c.start_job("qualify"), '{"id": "1"}', {"id": "1"}, "POST /skipd/v1/jobs", {"kind": "qualify"}),
    (lambda c: c.start_job("qualify", {"a": 1}), '{"id": "1"}', {"id": "1"}, "POST /skipd/v1/jobs", {"kind": "qualify", "options": {"a": 1}}),
    (lambda c: c.cancel_job("1"), '{"id": "1"}', {"id": "1"}, "POST /skipd/v1/jobs/1/cancel", None),
    (lambda c: c.update(), '{"active": null}', {"active": None}, "GET /skipd/v1/update", None),
    (lambda c: c.apply_update("/media/b.tar"), '{"floor": 1}', {"floor": 1}, "POST /skipd/v1/update/apply", {"path": "/media/b.tar"}),
    (lambda c: c.apply_update(pathlib.Path("/media/b"), relax_expiry=True), '{"floor": 1}', {"floor": 1}, "POST /skipd/v1/update/apply",
     {"path": "/media/b", "relax_expiry": True}),
    # The archive's own bytes, here of a JSON text so that the daemon of the test reads them.
    (lambda c: c.apply_update(b'"an archive"'), '{"floor": 1}', {"floor": 1}, "POST /skipd/v1/update/apply", "an archive"),
    (lambda c: c.roll_back_update(), '{"active": null}', {"active": None}, "POST /skipd/v1/update/rollback", None),
    (lambda c: c.drain(), "", None, "POST /skipd/v1/drain", None),
]


def _name(answered):
    """The name in an answer, which the one client gives at once and the other when it is awaited."""
    if not inspect.isawaitable(answered):
        return answered["name"]

    async def later():
        return (await answered)["name"]
    return later()


class Control(unittest.IsolatedAsyncioTestCase):
    async def test_every_call_of_both_clients_takes_its_route(self):
        for call, body, expected, route, sent in CALLS:
            async with Fake(answer(200, body)) as fake:
                with self.subTest(route):
                    self.assertEqual(await call(skipd.AsyncClient(fake.path)), expected)

                    def work():
                        with skipd.Client(fake.path) as client:
                            return call(client)
                    self.assertEqual(await asyncio.to_thread(work), expected)
                    self.assertEqual(fake.requests, [(f"{route} HTTP/1.1", sent)] * 2)

    async def test_a_refusal_is_its_exception(self):
        refusal = '{"error": {"message": "not you", "type": "permission_error", "code": "access_denied"}}'
        async with Fake(answer(403, refusal)) as fake:
            client = skipd.AsyncClient(fake.path)
            for work in (client.pin_prefix("a"), client.drop_prefix("a"), client.start_job("qualify"), client.drain(), client.apply_update(b"a"),
                         client.roll_back_update()):
                with self.assertRaises(skipd.AccessDenied):
                    await work

    async def test_a_refused_update_names_the_check_and_bytes_have_no_expiry_to_relax(self):
        refusal = '{"error": {"message": "replayed", "type": "x", "code": "table_refused", "details": {"check": "replay"}}}'
        async with Fake(answer(409, refusal)) as fake:
            client = skipd.AsyncClient(fake.path)
            with self.assertRaises(skipd.TableRefused) as caught:
                await client.apply_update("/media/b.tar")
            self.assertEqual(caught.exception.details["check"], "replay")
            with self.assertRaises(skipd.InvalidRequest) as caught:
                await client.apply_update(b"a", relax_expiry=True)
            self.assertEqual((caught.exception.param, len(fake.requests)), ("relax_expiry", 1))

    async def test_a_name_is_no_way_to_another_route(self):
        async with Fake(answer(200, "{}")) as fake:
            client = skipd.AsyncClient(fake.path)
            for work, param in [(client.drop_prefix("a/b"), "name"), (client.drop_prefix(".."), "name"), (client.drop_prefix(""), "name"),
                                (client.job("1/cancel"), "id"), (client.cancel_job("1?x"), "id"), (client.job("1\r\n"), "id")]:
                with self.assertRaises(skipd.NotFound) as caught:
                    await work
                self.assertEqual(caught.exception.param, param)
            self.assertEqual(fake.requests, [])


class Types(unittest.TestCase):
    def test_everything_public_says_its_types_and_the_package_that_it_does(self):
        bare = [f"{name}.{method}" for name in skipd.__all__ for method, function in _functions(getattr(skipd, name))
                if None in _said(function)]
        self.assertEqual(bare, [])
        self.assertTrue(pathlib.Path(PACKAGE, "py.typed").exists())

    def test_both_clients_have_the_same_calls_with_the_same_arguments(self):
        def calls(client):
            return {name: str(inspect.signature(function)).split(" -> ")[0] for name, function in _functions(client) if name[0] != "_"}
        self.assertEqual(calls(skipd.AsyncClient), {name: said for name, said in calls(skipd.Client).items() if name != "close"})


def _functions(of):
    members = vars(of).items() if inspect.isclass(of) else [("", of)]
    # What a dataclass makes of itself lies in no file.
    return [(name, member) for name, member in members if inspect.isfunction(member) and member.__code__.co_filename.startswith(PACKAGE)]


def _said(function):
    """What is said of each argument and of the result; None where nothing is."""
    signature = inspect.signature(function)
    empty = inspect.Signature.empty
    arguments = [None if argument.annotation is empty else argument for name, argument in signature.parameters.items() if name != "self"]
    return [*arguments, None if signature.return_annotation is empty else signature]


if __name__ == "__main__":
    unittest.main()
