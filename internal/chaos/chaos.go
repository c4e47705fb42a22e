// Package chaos kills Outboard and proves that it does not matter. It runs scripted sessions
// against real server processes, sends SIGKILL to runners, servers, guests and sandboxes at random
// instants, and starts them again.
//
// Then it checks the logs, and the marks that every command left in its workspace:
//   - each session reached its end;
//   - no event is lost, and no call was executed twice;
//   - an outcome that nobody can know is recorded as unknown.
//
// The schedule (who, when, which script) follows from the seed. Where exactly a kill hits does not,
// because the processes are real. It fakes nothing.
//
// Start reading at Run.
package chaos

import "io"

// Config says how much to break.
type Config struct {
	Binary   string    // the outboard program
	Guest    string    // the outboard-guest program
	Dir      string    // data directory, empty at the start
	DB       string    // postgres://..., "" = SQLite in Dir
	Sessions int       // sessions at the same time
	Kills    int       // SIGKILLs before the sessions may end
	Workers  int       // runner processes
	Seed     uint64    // of the schedule
	Talk     io.Writer // progress for people
}

// Summary is what a run proves, or what contradicts it.
type Summary struct {
	Type     string `json:"type"` // "chaos"
	OK       bool   `json:"ok"`
	Database string `json:"database"`
	Seed     uint64 `json:"seed"`
	Sessions int    `json:"sessions"`
	Messages int    `json:"messages"`
	Events   int    `json:"events"`
	Calls    int    `json:"calls"`
	Unknown  int    `json:"outcome_unknown"`
	Lost     int    `json:"sandboxes_lost"`
	// as if their sessions had rested for long; those whose answer was lost are not counted
	Stopped    int            `json:"sandboxes_stopped"`
	Dropped    int            `json:"sandboxes_dropped"`  // by the timer, to their checkpoint alone
	Restored   int            `json:"sandboxes_restored"` // of those, in which a turn went on
	Takeovers  int            `json:"takeovers"`          // claims beyond a session's first
	Kills      map[string]int `json:"kills"`
	Seconds    float64        `json:"seconds"`
	Violations []string       `json:"violations"` // never null
}
