package api_test

import (
	"bytes"
	"net/url"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/audit"
	"github.com/outboard-dev/outboard/internal/outboardtest"
)

// signer is the public key that a server signs its exports with.
func (b *bench) signer() string {
	b.t.Helper()
	if b.witness.Public() == "" {
		b.t.Fatal("the server has no key")
	}
	return b.witness.Public()
}

// taking is the route that imports files of a key.
func taking(key string) string { return "/v1/outboard/import?trust=" + url.QueryEscape(key) }

const whoever = "/v1/outboard/import?unsigned=true"

// If this fails, a session comes in from somebody whom nobody here has decided to trust, or from somebody who is
// trusted it does not; or who imports it is not told who signed it.
func TestExportsAreSigned(t *testing.T) {
	here, there := whole(t, outboardtest.Options{}), whole(t, outboardtest.Options{})
	friend := whole(t, outboardtest.Options{Trusted: []string{here.signer()}})
	k := here.talk("always_allow")
	k.turn("- say: first")
	r := here.ok("GET", "/v1/sessions/"+k.id+"/outboard/export", nil)
	if got := r.header.Get("Outboard-Signed-By"); got != here.signer() {
		t.Errorf("the export is said to be signed by %q", got)
	}
	file := string(r.body)
	takes := func(b *bench, path, file, by string) {
		t.Helper()
		if got := b.ok("POST", path, file).header.Get("Outboard-Signed-By"); got != by {
			t.Errorf("%s: signed by %q, want %q", path, got, by)
		}
	}
	takes(here, "/v1/outboard/import", file, here.signer())
	takes(friend, "/v1/outboard/import", file, here.signer())
	takes(there, taking(here.signer()), file, here.signer())
	takes(there, whoever, file, "")
	bare := file[:len(file)-audit.SealSize]
	takes(there, whoever, bare, "")
	name, _, _ := strings.Cut(here.signer(), "+")
	there.refused(400, name+`" signed it, and this server does not trust`, "POST", "/v1/outboard/import", file)
	there.refused(400, "does not trust", "POST", taking(friend.signer()), file)
	there.refused(400, "is no public key", "POST", taking("nonsense"), file)
	there.refused(400, "not signed, or its signature was cut off", "POST", taking(here.signer()), bare)
	here.refused(400, "not signed, or its signature was cut off", "POST", "/v1/outboard/import", bare)
}

// If this fails, somebody between two servers changes a session that the second one believes to be the first one's.
func TestSignedExportsAreWhole(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	k := b.talk("always_allow")
	k.turn("- bash: echo one > f", "- say: first")
	other := b.talk("always_allow")
	other.turn("- say: second")
	file, foreign := b.export(k.id), b.export(other.id)
	end := len(file) - audit.SealSize
	b.ok("POST", "/v1/outboard/import", string(file)) // the control
	remade := takeApart(t, file)
	remade.replace("session.json", `"seq"`, `"title": "mine", "seq"`)
	before := len(b.get("/v1/sessions", "data").([]any))
	forged := remade.pack(t, true)
	for name, c := range map[string]struct{ file, says string }{
		"another manifest, signed as before": {forged + string(file[end:]), "not the file that"},
		"another manifest, not signed":       {forged, "not signed"},
		"another's signature": {string(file[:end]) + string(foreign[len(foreign)-audit.SealSize:]),
			"session " + `"` + other.id},
		"two signatures": {string(file) + string(file[end:]), "not the file that"},
		"something before the signature": {string(file[:end]) + "\x50\x2a\x4d\x18\x01\x00\x00\x00x" +
			string(file[end:]), "not the file that"},
		"cut in the signature": {string(file[:len(file)-1]), ""},
	} {
		if r := b.refused(400, c.says, "POST", "/v1/outboard/import", c.file); r.status != 400 {
			t.Errorf("%s: %d", name, r.status)
		}
	}
	b.ok("POST", whoever, forged) // what is refused above is the signature, not the file
	step := 1
	if testing.Short() {
		step = 61
	}
	for i := 0; i < len(file); i += step {
		changed := bytes.Clone(file)
		changed[i] ^= []byte{0x01, 0x10, 0x20, 0x80}[i/step%4]
		if r := b.do("POST", "/v1/outboard/import", string(changed)); r.status != 400 ||
			!strings.Contains(r.str("error.message"), "the export: ") {
			t.Fatalf("byte %d of %d: %d %s", i, len(file), r.status, r.body)
		}
	}
	if n := len(b.get("/v1/sessions", "data").([]any)); n != before+1 {
		t.Errorf("refused imports left %d sessions", n-before-1)
	}
}

// If this fails, whoever changes a file of a session takes out of it that it has read what strangers wrote.
func TestUnsignedImportsAreUntrusted(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	k := b.talk("always_allow")
	k.turn("- say: first")
	file := string(b.ok("GET", "/v1/sessions/"+k.id+"/outboard/export", nil).body)
	taint := func(path, file string) outboard.Taint {
		t.Helper()
		st := new(outboard.State)
		for e, err := range b.store.Read(t.Context(), outboard.SessionID(b.ok("POST", path, file).str("id")), 0) {
			if err == nil {
				err = st.Apply(&e)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		return st.Taint
	}
	if got := taint(whoever, file[:len(file)-audit.SealSize]); got != (outboard.Taint{Untrusted: true}) {
		t.Errorf("of a file that nobody has signed: %+v", got)
	}
	if got := taint("/v1/outboard/import", file); got != (outboard.Taint{}) {
		t.Errorf("of a file that this server has signed: %+v", got)
	}
}

// If this fails, who exports a session, or one that was forked from it, is not told that what bounds it here is
// not in the file.
func TestExportsSayWhatIsLeftBehind(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	k := b.talk("always_allow")
	k.turn("- say: first")
	left := func(id string) string {
		return b.ok("GET", "/v1/sessions/"+id+"/outboard/export", nil).header.Get("Outboard-Left-Behind")
	}
	if got := left(k.id); got != "" {
		t.Errorf("of a session without bounds of its own: %q", got)
	}
	b.ok("POST", "/v1/policies", map[string]any{"level": "session", "target_id": k.id,
		"text": `@id("no") forbid (principal, action == Action::"bash", resource);`})
	b.ok("POST", "/v1/policies", map[string]any{"level": "organization",
		"text": `@id("none") forbid (principal, action == Action::"write", resource);`})
	b.ok("POST", "/v1/budgets", map[string]any{"scope": "session", "target_id": k.id,
		"limit": map[string]any{"steps": 1000}})
	want := "policy session:" + k.id + ", budget session:" + k.id
	forks, _ := b.fork(k.id, map[string]any{"count": 1})
	for _, id := range []string{k.id, forks[0]} {
		if got := left(id); got != want {
			t.Errorf("of %s: %q, want %q", id, got, want)
		}
	}
	b.ok("POST", "/v1/policies", map[string]any{"level": "session", "target_id": k.id, "text": ""})
	if got := left(k.id); got != "budget session:"+k.id {
		t.Errorf("with an empty policy: %q", got)
	}
}
