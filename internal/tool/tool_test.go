package tool

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/tool/registry"
)

func lookup(t *testing.T, name string) Def {
	t.Helper()
	d, ok := Lookup(name)
	if !ok {
		t.Fatalf("no tool %s", name)
	}
	return d
}

// Broken if a model is offered a tool that is not built, lacks one that is, or gets a schema that is not what is
// enforced.
func TestBuiltins(t *testing.T) {
	want := map[string]struct {
		fields, required string
		class            outboard.CallClass
		place            registry.Place
		change           bool
	}{
		"bash":  {"command restart timeout_ms", "", outboard.ClassEffect, registry.InSandbox, true},
		"read":  {"file_path view_range", "file_path", outboard.ClassPure, registry.InSandbox, false},
		"write": {"content file_path", "file_path content", outboard.ClassIdempotent, registry.InSandbox, true},
		"edit": {"file_path new_string old_string replace_all", "file_path old_string new_string",
			outboard.ClassEffect, registry.InSandbox, true},
		"glob":      {"path pattern", "pattern", outboard.ClassPure, registry.InSandbox, false},
		"grep":      {"path pattern", "pattern", outboard.ClassPure, registry.InSandbox, false},
		"web_fetch": {"url", "url", outboard.ClassPure, registry.InControl, false},
	}
	for _, d := range Builtins() {
		if d.Optional { // see registry.TestDefinitions
			continue
		}
		w, ok := want[d.Name]
		delete(want, d.Name)
		if !ok {
			t.Errorf("%s is offered", d.Name)
			continue
		}
		var s struct {
			Type       string
			Properties map[string]struct{ Type, Description string }
			Required   []string
			Additional *bool `json:"additionalProperties"`
		}
		if err := json.Unmarshal(d.Schema, &s); err != nil {
			t.Fatalf("%s: %v in %s", d.Name, err, d.Schema)
		}
		if s.Type != "object" || s.Additional == nil || *s.Additional {
			t.Errorf("%s: schema is not closed: %s", d.Name, d.Schema)
		}
		names := slices.Sorted(maps.Keys(s.Properties))
		if strings.Join(names, " ") != w.fields || strings.Join(s.Required, " ") != w.required {
			t.Errorf("%s: fields %v, required %v", d.Name, names, s.Required)
		}
		if d.Class != w.class || d.Place != w.place || d.MayChange != w.change || d.Description == "" {
			t.Errorf("%s: %+v", d.Name, d)
		}
	}
	if len(want) > 0 {
		t.Errorf("not offered: %v", want)
	}
	if _, ok := Lookup("web_search"); ok {
		t.Error("web_search is not built")
	}
}

// Broken if input outside its schema reaches a tool, valid input is refused, or the error does not name the field.
func TestValidate(t *testing.T) {
	tests := []struct{ tool, input, want string }{ // want "" = valid
		{"bash", `{"command":"ls"}`, ""},
		{"bash", ` {"command":"ls","timeout_ms":5,"restart":false} `, ""},
		{"bash", `{"restart":true}`, ""},
		{"bash", `{"restart":true,"command":null}`, ""},
		{"bash", `{}`, "command is required (a string), unless restart is true"},
		{"bash", `{"restart":false}`, "command is required"},
		{"bash", `{"restart":"yes"}`, `restart must be true or false, got "yes"`},
		{"bash", `{"command":["ls"]}`, `command must be a string, got ["ls"]`},
		{"bash", `{"command":""}`, "command must not be empty"},
		{"bash", `{"command":"a\u0000b"}`, "command must not contain a NUL character"},
		{"bash", `{"command":"ls","timeout_ms":0}`, "timeout_ms must be a whole number from 1 to 3600000, got 0"},
		{"bash", `{"command":"ls","timeout_ms":1.5}`, "timeout_ms must be a whole number"},
		{"bash", `{"command":"ls","timeout_ms":3600001}`, "timeout_ms must be"},
		{"bash", `{"command":"ls","timeout_ms":1e99}`, "timeout_ms must be"},
		{"bash", `{"Command":"ls"}`, `unknown field "Command"`},
		{"bash", `{"command":"ls","cmd":1}`, `unknown field "cmd"; bash takes command, restart, timeout_ms`},
		{"bash", `null`, "expected a JSON object, got null"},
		{"bash", `"ls"`, `expected a JSON object, got "ls"`},
		{"bash", ``, "not a JSON object"},
		{"bash", `{"command":"ls"`, "not a JSON object"},
		{"bash", `{"command":"ls"} {}`, "more than one JSON value"},
		{"read", `{"file_path":"/a","view_range":[1,1]}`, ""},
		{"read", `{"file_path":"/a","view_range":[2,1]}`, "view_range must be [start, end], two whole numbers with " +
			"1 <= start <= end, got [2,1]"},
		{"read", `{"file_path":"/a","view_range":[0,1]}`, "view_range must be"},
		{"read", `{"file_path":"/a","view_range":[1]}`, "view_range must be"},
		{"read", `{"file_path":"/a","view_range":[1,null]}`, "view_range must be"},
		{"read", `{"path":"/a"}`, "file_path is required (a string)"},
		{"read", `{"file_path":null}`, "file_path is required"},
		{"write", `{"file_path":"a","content":""}`, ""},
		{"write", `{"file_path":"a","content":"\u0000"}`, ""},
		{"write", `{"file_path":"a"}`, "content is required"},
		{"write", `{"file_path":"a\u0000","content":""}`, "file_path must not contain a NUL"},
		{"edit", `{"file_path":"a","old_string":"x","new_string":"","replace_all":true}`, ""},
		{"edit", `{"file_path":"a","old_string":"","new_string":"y"}`, "old_string must not be empty"},
		{"edit", `{"file_path":"a","old_string":"x","new_string":"x"}`, "new_string must differ"},
		{"glob", `{"pattern":"**/*.go"}`, ""},
		{"glob", `{"pattern":"*","path":7}`, "path must be a string, got 7"},
		{"grep", `{"pattern":"x","path":"src"}`, ""},
		{"grep", `{"pattern":"x","output_mode":"count"}`, `unknown field "output_mode"`},
		{"web_fetch", `{"url":"https://example.com/"}`, ""},
		{"web_fetch", `{}`, "url is required"},
	}
	for _, tt := range tests {
		err := lookup(t, tt.tool).Validate(outboard.Raw(tt.input))
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%s %s: %v", tt.tool, tt.input, err)
		case tt.want == "":
		case err == nil || outboard.KindOf(err) != outboard.Invalid:
			t.Errorf("%s %s: got %v", tt.tool, tt.input, err)
		case !strings.Contains(err.Error(), "for "+tt.tool+": ") || !strings.Contains(err.Error(), tt.want):
			t.Errorf("%s %s: got %q, want %q", tt.tool, tt.input, err, tt.want)
		}
	}
}

// Broken if Validate panics or accepts what is not one JSON object.
func FuzzValidate(f *testing.F) {
	f.Add("bash", `{"command":"ls","timeout_ms":1}`)
	f.Add("read", `{"file_path":"x","view_range":[1,2]}`)
	f.Fuzz(func(t *testing.T, name, input string) {
		d, ok := Lookup(name)
		if !ok {
			return
		}
		if d.Validate(outboard.Raw(input)) == nil {
			var m map[string]any
			if err := json.Unmarshal([]byte(input), &m); err != nil || m == nil {
				t.Errorf("accepted %q", input)
			}
			d.Timeout(outboard.Raw(input))
		}
	})
}

// Broken if the guest gets another timeout, shell, limit or digest than the call has.
func TestStart(t *testing.T) {
	in := outboard.Raw(`{"command":"ls","timeout_ms":1500}`)
	got := lookup(t, "bash").Start("k", 7, "gen", "sthr_1", in)
	if got.Key != "k" || got.Epoch != 7 || got.Generation != "gen" || got.Op != "bash" || got.Shell != "sthr_1" ||
		got.TimeoutMs != 1500 || got.OutputLimit != outboard.MaxToolOutput || got.Digest != Digest("bash", in) ||
		string(got.Input) != string(in) {
		t.Errorf("%+v", got)
	}
	if d := lookup(t, "bash").Timeout(outboard.Raw(`{"command":"ls"}`)); d != outboard.DefaultBashTimeout {
		t.Errorf("default timeout %v", d)
	}
	if d := lookup(t, "bash").Timeout(outboard.Raw(`{"timeout_ms":9223372036854775807}`)); d <= 0 ||
		d > outboard.MaxBashTimeout {
		t.Errorf("unbounded timeout %v", d)
	}
	if got := lookup(t, "read").Start("k", 1, "g", "sthr_1", outboard.Raw(`{"file_path":"a"}`)); got.Shell != "" ||
		got.TimeoutMs != 60000 {
		t.Errorf("%+v", got)
	}
}

// Broken if a call resumed from the log has another digest than the call that was started, so that the guest
// refuses it.
func TestDigest(t *testing.T) {
	in := outboard.Raw(`{ "b" : "<&>", "a": 12345678901234567890 }`)
	ev := outboard.NewEvent("sthr_1", &outboard.CallRequested{Name: "x", Input: in})
	p, err := ev.Decode()
	if err != nil {
		t.Fatal(err)
	}
	logged := p.(*outboard.CallRequested).Input
	if string(logged) == string(in) {
		t.Fatal("control: the log kept the bytes")
	}
	if Digest("x", in) != Digest("x", logged) {
		t.Error("digest changed in the log")
	}
	for _, other := range []string{`{"b":"<&>","a":12345678901234567891}`, `{"b":"<&>"}`, `{"b":"<&>"`, ``} {
		if Digest("x", in) == Digest("x", outboard.Raw(other)) {
			t.Errorf("same digest for %s", other)
		}
	}
	if Digest("x", in) == Digest("y", in) {
		t.Error("same digest for another tool")
	}
}

// Broken if the model is told something else than what happened.
func TestFinish(t *testing.T) {
	code := func(n int) *int { return &n }
	long := (1500 * time.Millisecond).Microseconds()
	tests := []struct {
		res     guest.Result
		outcome outboard.Outcome
		isError bool
		text    string
	}{
		{guest.Result{State: guest.StateDone, Cause: "exited", ExitCode: code(0), Output: []byte("hi\n")},
			outboard.OutcomeOK, false, "hi\n"},
		{guest.Result{State: guest.StateDone, Cause: "exited", ExitCode: code(0)}, outboard.OutcomeOK, false,
			"(no output)"},
		{guest.Result{State: guest.StateDone, Cause: "exited", ExitCode: code(2)}, outboard.OutcomeOK, true,
			"exit code 2"},
		{guest.Result{State: guest.StateDone, Cause: "exited", ExitCode: code(137), Output: []byte("x")},
			outboard.OutcomeOK, true, "x\nexit code 137"},
		{guest.Result{State: guest.StateDone, Cause: "exited", ExitCode: code(137), Output: []byte("x"),
			MemoryLimit: 512 << 20}, outboard.OutcomeOK, true,
			"x\n(the sandbox's memory limit of 512 MiB was hit while this ran, and the kernel ended a " +
				"program)\nexit code 137"},
		{guest.Result{State: guest.StateDone, Cause: "exited", ExitCode: code(0), MemoryLimit: 9000000},
			outboard.OutcomeOK, false,
			"(the sandbox's memory limit of 9000000 bytes was hit while this ran, and the kernel ended a program)"},
		{guest.Result{State: guest.StateDone, Cause: "exited", Output: []byte("1\tfile")}, outboard.OutcomeOK, false,
			"1\tfile"},
		{guest.Result{State: guest.StateDone, Cause: "timeout", DurationUs: long, Output: []byte("x\n")},
			outboard.OutcomeError, true, "x\ntimed out after 1.5s and was killed"},
		{guest.Result{State: guest.StateDone, Cause: "timeout",
			Output: []byte("x\n[timed out after 2s; the shell goes on]\n")},
			outboard.OutcomeError, true, "x\n[timed out after 2s; the shell goes on]\n"},
		{guest.Result{State: guest.StateDone, Cause: "killed", Output: []byte("[killed before it ran]\n")},
			outboard.OutcomeCanceled, true, "[killed before it ran]\n"},
		{guest.Result{State: guest.StateDone, Cause: "exited", Output: []byte("a\n[the whole output is in /tmp/o]\nz"),
			Truncated: true, FullPath: "/tmp/o"},
			outboard.OutcomeOK, false, "a\n[the whole output is in /tmp/o]\nz"},
		{guest.Result{State: guest.StateDone, Cause: "killed", DurationUs: long}, outboard.OutcomeCanceled, true,
			"canceled after 1.5s: it was killed while it ran"},
		{guest.Result{State: guest.StateDone, Cause: "error", Output: []byte("no such file")}, outboard.OutcomeError,
			true, "no such file"},
		{guest.Result{State: guest.StateKilled}, outboard.OutcomeCanceled, true, "canceled before it started"},
		{guest.Result{State: guest.StateAccepted}, outboard.OutcomeUnknown, true,
			"outcome unknown: the call was started, and whether it ran to its end cannot be told"},
		{guest.Result{State: guest.StateDone, Cause: "exited", ExitCode: code(1), Output: []byte("a...z"),
			Truncated: true, FullPath: "/tmp/o"},
			outboard.OutcomeOK, true, "a...z\n(output truncated; all of it is in /tmp/o)\nexit code 1"},
		{guest.Result{State: guest.StateDone, Cause: "exited", Output: []byte("a\xff\xfe\x00\x1b[31mz")},
			outboard.OutcomeOK, false, "a\uFFFD\uFFFD\x1b[31mz"},
	}
	for _, tt := range tests {
		got := Finish("sevt_1", tt.res, outboard.SandboxLimits{Pids: 512})
		if got.Call != "sevt_1" || got.Outcome != tt.outcome || got.IsError != tt.isError ||
			got.ExitCode != tt.res.ExitCode ||
			got.DurationUs != tt.res.DurationUs || got.Truncated != tt.res.Truncated ||
			got.FullOutput != tt.res.FullPath {
			t.Errorf("%+v: got %+v", tt.res, got)
		}
		if text := outboard.PlainText(got.Content); text != tt.text {
			t.Errorf("%+v: text %q, want %q", tt.res, text, tt.text)
		}
	}
}

// Broken if a model that reads of a failed fork is not told of the sandbox's limit, or is told of it where
// nothing failed for it.
func TestProcessLimitHint(t *testing.T) {
	const hint = "(if a process or thread could not be started: this sandbox may have 7 at a time, those in the " +
		"background included)"
	for output, want := range map[string]bool{
		"bash: fork: retry: Resource temporarily unavailable\n":                                             true,
		"bash: fork: Resource temporarily unavailable":                                                      true,
		"make: vfork: Resource temporarily unavailable":                                                     true,
		"  self.pid = _fork_exec(\n    args)\nBlockingIOError: [Errno 11] Resource temporarily unavailable": true,
		"RuntimeError: can't start new thread":                                                              true,
		"Error: spawn /bin/ls EAGAIN":                                                                       true,
		"java.lang.OutOfMemoryError: unable to create native thread: possibly":                              true,
		"runtime: failed to create new OS thread (have 5 already; errno=11)\nruntime: may need to increase max user " +
			"processes (ulimit -u)\nfatal: newosproc EAGAIN": true,
		"read: Resource temporarily unavailable": false,
		"a thread about spoons, and EAGA":        false,
		"Killed":                                 false,
		"":                                       false,
	} {
		code := 1
		fin := Finish("sevt_1", guest.Result{State: guest.StateDone, Cause: "exited", ExitCode: &code,
			Output: []byte(output)}, outboard.SandboxLimits{Pids: 7})
		if text := outboard.PlainText(fin.Content); strings.Contains(text, hint) != want ||
			!strings.HasSuffix(text, "exit code 1") {
			t.Errorf("%q: got %q, want the hint: %v", output, text, want)
		}
	}
}

// Broken if a model that reads of a write that did not fit is not told which limit it was, or is told of it
// where nothing failed for it.
func TestFullHint(t *testing.T) {
	const limited, unlimited = "its limit disk_bytes is 64 MiB", "the server's disk"
	res := guest.Result{State: guest.StateDone, Cause: "exited",
		Output: []byte("bash: line 1:  7 File size limit exceeded(core dumped) dd")}
	if text := outboard.PlainText(Finish("sevt_1", res, outboard.SandboxLimits{}).Content); !strings.Contains(text,
		"room that sandboxes leave") {
		t.Errorf("where nothing may be written: %q", text)
	}
	for output, want := range map[string]bool{
		"sort: write failed: /tmp/sortAbC: No space left on device":  true,
		"OSError: [Errno 28] No space left on device: '/tmp/x'":      true,
		"Error: ENOSPC: no space left on device, write":              true,
		"dd: Disk quota exceeded":                                    true,
		"there is no space in the name":                              false,
		"the file does not fit: disk_bytes, no space left on device": false,
		"": false,
	} {
		for disk, limit := range map[int64]string{64 << 20: limited, 0: unlimited} {
			code := 1
			res := guest.Result{State: guest.StateDone, Cause: "exited", ExitCode: &code, Output: []byte(output)}
			text := outboard.PlainText(Finish("sevt_1", res, outboard.SandboxLimits{DiskBytes: disk}).Content)
			if strings.Contains(text, limit) != want || !strings.HasSuffix(text, "exit code 1") {
				t.Errorf("%q with disk_bytes %d: got %q, want the hint: %v", output, disk, text, want)
			}
		}
	}
}

// Broken if any output makes an event that the log refuses for its size, or that is not valid JSON.
func TestFinishIsBounded(t *testing.T) {
	fill := func(s string) []byte { return []byte(strings.Repeat(s, 2*outboard.MaxToolOutput/len(s))) }
	for _, out := range [][]byte{fill("a"), fill("\x01"), fill("<&>"), fill("\xff\x01"), fill("é\u2028"), fill("\"\n"),
		fill("\xf0\x9f\x98\x80")} {
		for _, res := range []guest.Result{
			{State: guest.StateDone, Cause: "exited", Output: out},
			{State: guest.StateDone, Cause: "timeout", Output: out[:outboard.MaxToolOutput], Truncated: true,
				FullPath: "/tmp/x"},
		} {
			fin := Finish("sevt_1", res, outboard.SandboxLimits{Pids: 512})
			text := outboard.PlainText(fin.Content)
			if len(text) > outboard.MaxToolOutput || !fin.Truncated {
				t.Errorf("%q...: %d bytes, truncated %v", out[:4], len(text), fin.Truncated)
			}
			if ev := outboard.NewEvent("sthr_1", &fin); len(ev.Data) > outboard.MaxEventData || !json.Valid(ev.Data) {
				t.Errorf("%q...: event of %d bytes", out[:4], len(ev.Data))
			}
			if !strings.Contains(text, "bytes left out") && len(text) < outboard.MaxToolOutput/2 {
				t.Errorf("%q...: only %d bytes are left", out[:4], len(text))
			}
		}
	}
}

// Broken if shortening cuts a character in two, keeps too much, or touches text that fits.
func FuzzFit(f *testing.F) {
	f.Add("hello", 300, 600)
	f.Add(strings.Repeat("é<\x01", 200), 300, 600)
	f.Fuzz(func(t *testing.T, s string, size, encoded int) {
		if size < 128 || size > 1<<20 || encoded < 256 || encoded > 1<<20 {
			return
		}
		s = Clean(s)
		got, cut := Fit(s, size, encoded)
		b, err := json.Marshal(got)
		if err != nil || len(got) > size || len(b)-2 > encoded || strings.ToValidUTF8(got, "") != got {
			t.Errorf("%d bytes (%d encoded) of %d (%d): %q", len(got), len(b)-2, size, encoded, got)
		}
		whole, _ := json.Marshal(s)
		if fits := len(s) <= size && len(whole)-2 <= encoded; fits == cut || !cut && got != s {
			t.Errorf("fits %v, cut %v", fits, cut)
		}
	})
}
