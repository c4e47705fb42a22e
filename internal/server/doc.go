// Package server puts the parts of Outboard together: it turns a Config into a running server, and stops it
// again. There is no other wiring. The program, the tests, the benches and the chaos runs all start what they
// need here, so a test passes through the same kill switch, gateway, vault and audit as a request of a user.
//
// It owns
//
//   - the order in which parts start and stop: a part starts after everything that it uses, and stops before it;
//   - the adapters between parts that do not know each other: gatePolicy (policy for egress), vaultCredentials (vault for egress),
//     netAsker (approvals for egress) and killer (everything that the kill switch holds);
//   - the layout of the data directory, below Config.Data.
//
// Invariants: the kills in force are read before anything can have an effect. A part that cannot be made as
// configured is an error of Start, never a server with less protection; the one exception is a host that can
// make no sandbox, whose server answers, and refuses tool calls with the reason (Server.Problem). When Start
// fails, everything that it started is stopped. Stop can be called twice: it stops claiming, finishes or
// releases turns, pauses their sandboxes, and closes the store last.
//
// Its doors are a package of their own, server/doors: what is here answers nobody.
//
// It never reads flags, writes to a terminal, handles signals or decides which database a data directory belongs
// to: that is the program's part (cmd/outboard). It never holds a rule: rules are in policy, netrule and
// control.
package server
