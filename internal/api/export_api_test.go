package api_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/outboardtest"
)

// hostileTree makes what is hard to carry: modes, links, holes, times and names. treeHash tells all of it in one line.
const (
	hostileTree = `(mkdir -p t/deep/er t/closed t/empty; cd t; echo a > a; ln a b; ln -s a l; ln -s /etc/passwd abs; ln -s ../../.. up; ln -s gone dangling; ` +
		`mkfifo fifo; printf x > "$(printf 'new\\nline')"; printf y > "$(printf '\\377\\376')"; printf z > "  spaces  "; printf q > '*?"'; printf d > ./-rf; ` +
		`truncate -s 5M hole; printf end >> hole; printf 'k' > .hidden; chmod 640 a; printf s > script; chmod 755 script; printf r > ro; chmod 400 ro; ` +
		`touch -d '2001-02-03 04:05:06.789012345' script ro; touch -h -d '1999-01-01 00:00:00' l; chmod 1777 deep; printf in > closed/x; chmod 500 closed; ` +
		`long=$(printf '%0200d' 7); printf n > $long; mkdir -p deep/$long/$long; printf m > deep/$long/$long/$long; touch -d '2010-10-10' deep)`
	treeHash = `(cd t; { find . -mindepth 1 ! -type d -printf '%P %y %m %s %T@ %l %n\0'; find . -mindepth 1 -type d -printf '%P %y %m %T@\0'; } | sort -z | sha256sum; ` +
		`find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum; [ a -ef b ] && echo linked)`
)

// yamlStep is a bash step of the script model; its text stays as it is.
func yamlStep(cmd string) string {
	b, _ := json.Marshal(cmd)
	return "- bash: " + string(b)
}

// export returns a session as a file.
func (b *bench) export(id string) []byte {
	b.t.Helper()
	return b.ok("GET", "/v1/sessions/"+id+"/outboard/export", nil).body
}

// If this fails, a session that moves to another server arrives there without its conversation, with other
// files, or with secrets.
func TestExportGoesOnElsewhere(t *testing.T) {
	here := whole(t, outboardtest.Options{})
	there := whole(t, outboardtest.Options{Trusted: []string{here.signer()}})
	k := here.talk("always_allow")
	k.turn("- bash: echo one > f", "- say: first")
	evs := k.turn(yamlStep(hostileTree), yamlStep(treeHash), "- say: second")
	want := texts(evs, "agent.tool_result")[1]
	if !strings.Contains(want, "linked") {
		t.Fatalf("the tree was not made: %v", texts(evs, "agent.tool_result"))
	}
	big := strings.Repeat("long ", 40_000)
	k.turn("- say: " + big)
	file := here.export(k.id)
	if strings.Contains(unzstd(t, file), here.key) {
		t.Error("the file has the server's key in it")
	}
	got := there.ok("POST", "/v1/outboard/import?title=moved", string(file))
	id := got.str("id")
	if got.get("usage.input_tokens").(float64) != 0 || got.str("title") != "moved" || got.str("status") != "idle" ||
		id == k.id || got.str("agent.name") != "a" {
		t.Errorf("the import is %s", got.body)
	}
	before, after := here.whole(k.id), there.whole(id)
	if len(after) < len(before) {
		t.Fatalf("%d of %d events came", len(after), len(before))
	}
	for i, e := range before {
		if after[i]["id"] != e["id"] || after[i]["type"] != e["type"] || after[i]["processed_at"] != e["processed_at"] {
			t.Fatalf("event %d is %v, was %v", i, after[i], e)
		}
	}
	if a, b := here.sees(k.id), there.sees(id); a != b || !strings.Contains(a, "second") {
		t.Errorf("the model sees %.100q, saw %.100q", b, a)
	}
	j := there.resume(id)
	evs = j.turn(yamlStep(treeHash), "- bash: cat f", "- say: third")
	if r := texts(evs, "agent.tool_result"); r[0] != want || strings.TrimSpace(r[1]) != "one" {
		t.Errorf("the tree is\n%swas\n%s", r[0], want)
	}
	again := there.ok("POST", "/v1/outboard/import", string(file)).str("id")
	if again == id {
		t.Error("the second import is the first one")
	}
	back := here.ok("POST", "/v1/outboard/import?trust="+url.QueryEscape(there.signer()),
		string(there.export(id))).str("id")
	evs = here.resume(back).turn(yamlStep(treeHash), "- say: home")
	if r := texts(evs, "agent.tool_result"); r[0] != want {
		t.Errorf("after the way back the tree is\n%swas\n%s", r[0], want)
	}
}

// exportFile is a taken-apart export.
type exportFile struct {
	names []string
	data  map[string][]byte
}

func unzstd(t *testing.T, b []byte) string {
	t.Helper()
	r, err := zstd.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func takeApart(t *testing.T, b []byte) *exportFile {
	t.Helper()
	x := &exportFile{data: map[string][]byte{}}
	tr := tar.NewReader(strings.NewReader(unzstd(t, b)))
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return x
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		x.names, x.data[h.Name] = append(x.names, h.Name), body
	}
}

// pack puts it together again; with sign the manifest is made to fit.
func (x *exportFile) pack(t *testing.T, sign bool) string {
	t.Helper()
	if sign {
		var m map[string]any
		if err := json.Unmarshal(x.data["manifest.json"], &m); err != nil {
			t.Fatal(err)
		}
		var entries []map[string]any
		for _, n := range x.names[:len(x.names)-1] {
			sum := sha256.Sum256(x.data[n])
			entries = append(entries, map[string]any{"name": n, "size": len(x.data[n]),
				"sha256": hex.EncodeToString(sum[:])})
		}
		m["entries"] = entries
		x.data["manifest.json"], _ = json.Marshal(m)
	}
	var out bytes.Buffer
	zw, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	tw := tar.NewWriter(zw)
	for _, n := range x.names {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: n, Size: int64(len(x.data[n])),
			Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		tw.Write(x.data[n])
	}
	if err := errors.Join(tw.Close(), zw.Close()); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// replace changes an entry.
func (x *exportFile) replace(name, old, by string) {
	x.data[name] = bytes.Replace(x.data[name], []byte(old), []byte(by), 1)
}

// If this fails, a file that was changed on its way, or made by an enemy, becomes a session, crashes the server,
// or reaches what belongs to other sessions.
func TestImportRefusesWhatWasChanged(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	k := b.talk("always_allow")
	k.turn("- bash: echo one > f", "- say: first")
	good := b.export(k.id)
	other := b.talk("always_allow")
	other.turn("- bash: echo secret > f", "- say: x")
	foreign := takeApart(t, b.export(other.id))
	var secret string
	for _, n := range foreign.names {
		if after, ok := strings.CutPrefix(n, "blobs/"); ok {
			secret = after
		}
	}
	// positive control
	if x := takeApart(t, good); b.do("POST", "/v1/outboard/import?unsigned=true", x.pack(t, true)).status != 200 {
		t.Fatal("an export that was taken apart and put together again is refused")
	}
	log := "events/00000001.jsonl"
	sessions := len(b.get("/v1/sessions", "data").([]any))
	for _, c := range []struct {
		name, says string
		sign       bool
		change     func(x *exportFile)
	}{
		{"a word of the log", "00000001.jsonl", false, func(x *exportFile) { x.replace(log, "first", "fiRst") }},
		{"the config", "session.json", false,
			func(x *exportFile) { x.replace("session.json", `"name": "a"`, `"name": "b"`) }},
		{"a blob", "has the hash", false, func(x *exportFile) {
			i := slices.IndexFunc(x.names, func(n string) bool { return strings.HasPrefix(n, "blobs/") })
			x.data[x.names[i]][600] ^= 1
		}},
		{"two entries swapped", "reordered", false, func(x *exportFile) {
			i := slices.Index(x.names, "files.json")
			x.names[i], x.names[i-1] = x.names[i-1], x.names[i]
		}},
		{"the log of another", "00000001.jsonl", false, func(x *exportFile) { x.data[log] = foreign.data[log] }},
		{"the manifest of another", "another export's", false,
			func(x *exportFile) { x.data["manifest.json"] = foreign.data["manifest.json"] }},
		{"a missing entry", "is missing", false, func(x *exportFile) { x.names = slices.Delete(x.names, 3, 4) }},
		{"no manifest", "cut off", false, func(x *exportFile) { x.names = x.names[:len(x.names)-1] }},
		{"one more entry", "no meaning", true,
			func(x *exportFile) { x.names = slices.Insert(x.names, 1, "../../etc/passwd") }},
		{"an entry twice", "twice", true, func(x *exportFile) { x.names = slices.Insert(x.names, 2, "session.json") }},
		{"another format", "reads outboard-export/1", true,
			func(x *exportFile) { x.data["format"] = []byte("outboard-export/9\n") }},
		{"no format", "not like an export", true, func(x *exportFile) { x.names = x.names[1:] }},
		{"a gap in the log", "event 3 after 1", true, func(x *exportFile) { x.replace(log, `"seq":2,`, `"seq":3,`) }},
		{"an event twice", "twice", true, func(x *exportFile) {
			lines := bytes.SplitAfter(x.data[log], []byte("\n"))
			id := func(l []byte) string { _, s, _ := strings.Cut(string(l), `"id":"`); return s[:30] }
			lines[2] = bytes.Replace(lines[2], []byte(id(lines[2])), []byte(id(lines[1])), 1)
			x.data[log] = bytes.Join(lines, nil)
		}},
		{"an unknown event", "unknown type", true,
			func(x *exportFile) { x.replace(log, `"turn.started"`, `"turn.sterted"`) }},
		{"a wrong payload", "event", true, func(x *exportFile) { x.replace(log, `"turn":1`, `"turn":"1"`) }},
		{"half a log", "ends with event", true, func(x *exportFile) {
			lines := bytes.SplitAfter(x.data[log], []byte("\n"))
			x.data[log] = bytes.Join(lines[:4], nil)
		}},
		{"no JSON", "no event", true, func(x *exportFile) { x.data[log] = []byte("{\n") }},
		{"a long line", "reading the log", true,
			func(x *exportFile) { x.data[log] = bytes.Repeat([]byte("x"), 2*outboard.MaxConfigData+1<<20) }},
		{"content of another session", "no content", true, func(x *exportFile) {
			_, mine, _ := strings.Cut(string(x.data["checkpoints.json"]), `"digest": "`)
			x.replace("checkpoints.json", mine[:64], secret)
		}},
		{"a checkpoint of another", "end with", true,
			func(x *exportFile) { x.replace("session.json", `"checkpoint": "ckpt_01`, `"checkpoint": "ckpt_02`) }},
		{"an unknown model", "model", true,
			func(x *exportFile) { x.replace("session.json", "script/steps", "nobody/xyz") }},
		{"an unknown field", "unknown field", true, func(x *exportFile) {
			x.replace("session.json", `"in_turn"`, `"x"`)
			x.replace("session.json", `"seq"`, `"vault_keys": 1, "seq"`)
		}},
		{"a long title", "title", true, func(x *exportFile) {
			x.replace("session.json", `"agent_id"`, `"title": "`+strings.Repeat("x", 501)+`", "agent_id"`)
		}},
	} {
		x := takeApart(t, good)
		x.data["../../etc/passwd"] = []byte("x")
		c.change(x)
		if r := b.refused(400, c.says, "POST", "/v1/outboard/import?unsigned=true",
			x.pack(t, c.sign)); r.status != 400 {
			t.Errorf("%s: %d", c.name, r.status)
		}
	}
	for _, body := range []string{"", "no export", string(good[:len(good)/2]), string(good) + "more", unzstd(t, good)} {
		b.refused(400, "export", "POST", "/v1/outboard/import", body)
	}
	if n := len(b.get("/v1/sessions", "data").([]any)); n != sessions {
		t.Errorf("refused imports left %d sessions", n-sessions)
	}
}

// If this fails, a workspace leaves the server without anybody being able to say who took it, or although that
// could not be written down.
func TestWorkspaceDownloadIsAudited(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	k := b.talk("always_allow")
	path := "/v1/sessions/" + k.id + "/outboard/workspace"
	taken := func() int64 {
		n, err := b.store.CountAudit(t.Context(), b.admin(), "session.workspace", outboard.Allowed, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if res := b.do("GET", path, nil); res.status != 404 || taken() != 0 {
		t.Fatalf("before there is one: %d %s, %d records", res.status, res.body, taken())
	}
	k.turn("- bash: echo kept > f", "- say: done")
	if res := b.do("GET", path, nil); res.status != 200 || !bytes.Contains(res.body, []byte("kept")) || taken() != 1 {
		t.Errorf("the control: %d, %d bytes, %d records", res.status, len(res.body), taken())
	}
	b.store.SealAudit(errors.New("closed by the test"))
	if res := b.do("GET", path, nil); res.status < 500 || bytes.Contains(res.body, []byte("kept")) {
		t.Errorf("sent without a record: %d, %d bytes", res.status, len(res.body))
	}
}

// If this fails, what was sent to a session cannot be had where it was not sent from, or can by others, or by
// nobody knows whom.
func TestSentWorkspace(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	k := b.talk("always_allow")
	path := "/v1/sessions/" + k.id + "/outboard/workspace/sent"
	if res := b.do("GET", path, nil); res.status != 404 || !strings.Contains(string(res.body), "was sent no work") {
		t.Fatalf("nothing was sent: %d %s", res.status, res.body)
	}
	up := b.upload("file", "w.tar:the work")
	id := outboard.FileID(up.get("id").(string))
	name := func(id outboard.FileID) {
		b.ok("POST", "/v1/sessions/"+k.id,
			map[string]any{"metadata": map[string]string{"outboard.workspace": string(id) + ":tar"}})
	}
	name(id)
	if res := b.do("GET", path, nil); res.status != 200 || string(res.body) != "the work" {
		t.Errorf("what was sent: %d %q", res.status, res.body)
	}
	n, err := b.store.CountAudit(t.Context(), b.admin(), "session.workspace", outboard.Allowed, time.Time{})
	if err != nil || n != 1 {
		t.Errorf("%d records, %v", n, err)
	}
	f, err := b.store.File(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, foreign := range []outboard.File{{Org: f.Org, Session: "sesn_01JZZZZZZZZZZZZZZZZZZZZZZZ"},
		{Org: "org_01JZZZZZZZZZZZZZZZZZZZZZZZ"}} {
		f.ID, f.Org, f.Session = outboard.NewID[outboard.FileID](outboard.PrefixFile), foreign.Org, foreign.Session
		if err := b.store.PutFile(t.Context(), f); err != nil {
			t.Fatal(err)
		}
		name(f.ID)
		if res := b.do("GET", path, nil); res.status != 404 {
			t.Errorf("a file of another session or organization: %d", res.status)
		}
	}
}

// If this fails, a session leaves the server without anybody being able to say who took it, or although that
// could not be written down.
func TestExportIsAudited(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	k := b.talk("always_allow")
	k.turn("- say: first")
	exports := func() int64 {
		n, err := b.store.CountAudit(t.Context(), b.admin(), "session.export", outboard.Allowed, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := exports(); n != 0 {
		t.Fatalf("%d records before the first export", n)
	}
	b.export(k.id)
	if n := exports(); n != 1 {
		t.Errorf("%d records of one export", n)
	}
	b.store.SealAudit(errors.New("closed by the test"))
	if res := b.do("GET", "/v1/sessions/"+k.id+"/outboard/export", nil); res.status < 500 ||
		bytes.HasPrefix(res.body, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		t.Errorf("exported without a record: %d, %d bytes", res.status, len(res.body))
	}
}

// If this fails, an imported session has nothing but its end to go back to, though the states before it came along.
func TestImportGoesBack(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	k := b.talk("always_allow")
	for _, n := range []string{"one", "two", "three"} {
		k.turn("- bash: echo "+n+" > f", "- say: "+n)
	}
	id := b.ok("POST", "/v1/outboard/import", string(b.export(k.id))).str("id")
	path := "/v1/sessions/" + id
	var at []float64
	for _, c := range b.ok("GET", path+"/outboard/checkpoints", nil).get("data").([]any) {
		at = append(at, c.(map[string]any)["seq"].(float64))
	}
	if len(at) != 3 {
		t.Fatalf("the import has checkpoints at %v, want 3", at)
	}
	reads := func(id string) string {
		t.Helper()
		return texts(b.resume(id).turn("- bash: cat f"), "agent.tool_result")[0]
	}
	diff := b.ok("GET", fmt.Sprintf("%s/outboard/checkpoints/diff?from=%.0f&to=%.0f", path, at[0], at[2]), nil)
	if !strings.Contains(string(diff.body), "workspace/f") {
		t.Errorf("the comparison of two positions is %s", diff.body)
	}
	forks, _ := b.fork(id, map[string]any{"seq": at[1]})
	part := b.ok("GET", fmt.Sprintf("%s/outboard/export?seq=%.0f", path, at[1]), nil).body
	b.ok("POST", path+"/rewind", map[string]any{"seq": at[0]})
	for name, c := range map[string]struct{ id, want string }{
		"rewound to the first": {id, "one"}, "forked at the second": {forks[0], "two"}, "the original": {k.id, "three"},
		"exported at the second": {b.ok("POST", "/v1/outboard/import", string(part)).str("id"), "two"},
	} {
		if got := strings.TrimSpace(reads(c.id)); got != c.want {
			t.Errorf("%s: f is %q, want %q", name, got, c.want)
		}
	}
}
