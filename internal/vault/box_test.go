package vault

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// boxOf is a box in the store with headers of its own.
func (r *rig) boxOf(headers map[string]map[string]string) outboard.Box {
	r.Helper()
	b := outboard.Box{ID: outboard.NewBoxID(), Org: outboard.DefaultOrg, State: outboard.BoxRunning, CreatedAt: r.now,
		EndAt: r.now}
	secret := map[string]map[string]outboard.Secret{}
	for host, list := range headers {
		secret[host] = map[string]outboard.Secret{}
		for name, value := range list {
			secret[host][name] = outboard.NewSecret(value)
		}
	}
	var err error
	b.Headers, err = r.SealBox(r.Context(), b.ID, secret, outboard.Secret{})
	r.must(err)
	r.must(r.store.AddBox(r.Context(), b))
	return b
}

func (r *rig) useBox(k *Keeper, b outboard.Box, url string) (map[string]string, error) {
	r.Helper()
	q, err := RequestFor(http.MethodGet, url)
	r.must(err)
	in, err := k.UseBox(r.Context(), q, b.ID, b.Org, b.Headers)
	out := map[string]string{}
	for name, value := range in.Set {
		out[name] = value.Reveal()
	}
	if len(in.Scrub) != len(in.Set) {
		r.Errorf("%s: %d of %d values are kept out of answers", url, len(in.Scrub), len(in.Set))
	}
	return out, err
}

// Broken if a box's headers go to hosts they are not for, in the clear, or to another box; if they are not those
// that were set, also after the keys were changed; or if a value is to be read in the database.
func TestBoxHeaders(t *testing.T) {
	r := newRig(t)
	const key = "key-of-box-one"
	b := r.boxOf(map[string]map[string]string{"a.test": {"x-key": key, "X-More": "1"}, "*.b.test": {"X-Key": "wide"},
		"*.c.b.test": {"X-Key": "narrow"}, "e.c.b.test": {"X-Key": "one"}})
	for range 2 {
		for url, want := range map[string]string{"https://a.test/x": key, "https://a.test:8443/x": key,
			"https://x.b.test/": "wide", "https://d.c.b.test/": "narrow",
			"https://e.c.b.test/": "one", "https://b.test/": "", "https://a.test.evil.test/": "", "http://c.test/": ""} {
			got, err := r.useBox(r.Keeper, b, url)
			if err != nil || got["X-Key"] != want || (got["X-More"] == "1") != (want == key) {
				t.Errorf("%s: %v, %v", url, got, err)
			}
		}
		if n, err := r.RotateKeys(t.Context()); err != nil || n.Credentials != 1 {
			t.Fatalf("new keys: %+v, %v", n, err)
		}
	}
	if _, err := r.useBox(r.another(), b, "https://a.test/"); err != nil {
		t.Errorf("another process: %v", err)
	}
	if got, err := r.useBox(r.Keeper, b, "http://a.test/"); outboard.KindOf(err) != outboard.Denied || len(got) > 0 {
		t.Errorf("in the clear: %v, %v", got, err)
	}
	other := r.boxOf(nil)
	other.Headers = b.Headers // somebody wrote it into another box's row
	if got, err := r.useBox(r.Keeper, other, "https://a.test/"); err == nil || len(got) > 0 {
		t.Errorf("another box: %v, %v", got, err)
	}
	wider := b
	wider.Headers.Names = map[string][]string{"evil.test": {"X-Key"}} // or other hosts into its own
	if got, err := r.useBox(r.Keeper, wider, "https://evil.test/"); err != nil || len(got) > 0 {
		t.Errorf("a host that was not sealed: %v, %v", got, err)
	}
	row, err := r.store.Credential(t.Context(), b.Headers.Credential)
	r.must(err)
	text, err := json.Marshal([]any{row, b})
	if err != nil || strings.Contains(string(text), key) || strings.Contains(string(row.Sealed.Data), key) {
		t.Errorf("a value lies open: %s, %v", text, err)
	}
	list, err := r.store.AuditRecords(t.Context(), store.AuditQuery{Actor: string(b.ID), Action: AuditUse, Limit: 1000})
	if err != nil || len(list) == 0 || !strings.Contains(list[0].Rule, string(b.Headers.Credential)) ||
		strings.Contains(string(list[0].Detail), key) {
		t.Errorf("the audit: %+v, %v", list, err)
	}
	if vaults, err := r.store.Vaults(t.Context(), store.Page{IncludeArchived: true}); err != nil || len(vaults) != 1 {
		t.Errorf("they are in a vault that everybody sees: %+v, %v", vaults, err)
	}
}

// Broken if the headers of a box that is gone stay, or those of one that lives go.
func TestBoxHeadersGo(t *testing.T) {
	r := newRig(t)
	one := map[string]map[string]string{"a.test": {"X-Key": "key-of-a-box"}}
	living, killed, orphan, changed := r.boxOf(one), r.boxOf(one), r.boxOf(one), r.boxOf(one)
	is := func(b outboard.Box) bool {
		_, err := r.store.Credential(t.Context(), b.Headers.Credential)
		if err != nil && outboard.KindOf(err) != outboard.NotFound {
			t.Fatal(err)
		}
		return err == nil
	}
	r.must(r.ForgetBox(t.Context(), killed.Headers))
	r.must(r.ForgetBox(t.Context(), outboard.BoxHeaders{}))
	if is(killed) || !is(living) {
		t.Error("a box's headers stay, or another's went")
	}
	if got, err := r.useBox(r.Keeper, killed, "https://a.test/"); err == nil {
		t.Errorf("a request goes without its headers: %v", got)
	}
	r.must(r.store.DeleteBox(t.Context(), orphan.ID))
	_, err := r.store.ChangeBox(t.Context(), changed.ID,
		func(b *outboard.Box) error { b.Headers = outboard.BoxHeaders{}; return nil })
	r.must(err)
	r.must(r.SweepBoxes(t.Context()))
	if !is(orphan) || !is(changed) {
		t.Error("headers of a box that may be about to be made were removed")
	}
	r.now = r.now.Add(2 * sweepAge)
	r.must(r.SweepBoxes(t.Context()))
	if is(orphan) || is(changed) || !is(living) {
		t.Errorf("after sweeping: of no box %v, of one that has others %v, of one that lives %v", is(orphan),
			is(changed), is(living))
	}
	if got, err := r.useBox(r.Keeper, living, "https://a.test/"); err != nil || got["X-Key"] == "" {
		t.Errorf("the one that lives: %v, %v", got, err)
	}
}

// Broken if the password for a box's proxy is among its headers, goes to another box, is not on record when it
// is used, is lost with new keys, or outlives the box.
func TestBoxProxyPassword(t *testing.T) {
	r := newRig(t)
	const word = "pass-0f-the-proxy"
	b := outboard.Box{ID: outboard.NewBoxID(), Org: outboard.DefaultOrg, CreatedAt: r.now, EndAt: r.now}
	var err error
	b.Headers, err = r.SealBox(t.Context(), b.ID,
		map[string]map[string]outboard.Secret{"a.test": {"X-Key": outboard.NewSecret("key-of-box-one")}}, outboard.NewSecret(word))
	r.must(err)
	r.must(r.store.AddBox(t.Context(), b))
	to := Request{Scheme: "socks5", Method: http.MethodConnect, Host: "proxy.test", Port: 1080, Path: "/"}
	for range 2 {
		if got, err := r.UseBoxProxy(t.Context(), to, b.ID, b.Org, b.Headers); err != nil || got.Reveal() != word {
			t.Errorf("%v, %v", got, err)
		}
		if got, err := r.useBox(r.Keeper, b, "https://a.test/"); err != nil || len(got) != 1 ||
			got["X-Key"] != "key-of-box-one" {
			t.Errorf("its headers: %v, %v", got, err)
		}
		_, err = r.RotateKeys(t.Context())
		r.must(err)
	}
	if got, ok := b.Headers.Names[""]; ok {
		t.Errorf("shown: %v", got)
	}
	rows, err := r.store.AuditRecords(t.Context(), store.AuditQuery{Actor: string(b.ID), Action: AuditUse,
		Text: "proxy.test"})
	if err != nil || len(rows) != 2 || rows[0].Resource != "CONNECT socks5://proxy.test:1080/" {
		t.Errorf("on record: %+v, %v", rows, err)
	}
	if got, err := r.UseBoxProxy(t.Context(), to, outboard.NewBoxID(), b.Org, b.Headers); err == nil || !got.IsZero() {
		t.Errorf("another box: %v", err)
	}
	only := r.boxOf(map[string]map[string]string{"a.test": {"X-Key": "key-of-box-two"}})
	if got, err := r.UseBoxProxy(t.Context(), to, only.ID, only.Org, only.Headers); err == nil || !got.IsZero() {
		t.Errorf("one that has none: %v", err)
	}
	r.must(r.ForgetBox(t.Context(), b.Headers))
	if got, err := r.UseBoxProxy(t.Context(), to, b.ID, b.Org, b.Headers); err == nil || !got.IsZero() {
		t.Errorf("after its end: %v", err)
	}
}
