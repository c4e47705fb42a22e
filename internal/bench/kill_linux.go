package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
	"github.com/outboard-dev/outboard/internal/kill"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/vault"
)

// Bars of the kill switch. They are promises, so they are absolute.
const (
	killProcesses = 300
	killBar       = 100 * time.Millisecond // until the processes of a sandbox are gone
	killRounds    = 20
	seenBar       = time.Second // until what was taken away at one server is taken away at another's gateway
	seenRounds    = 10
	seenTimeout   = 20 * time.Second // beyond it nothing is measured any more
)

// Kill measures how long it takes until the processes of a full sandbox are gone, and until a gateway refuses
// what another server of the same database has revoked or killed.
func Kill(ctx context.Context, cfg HandsConfig) ([]Row, error) {
	h := &hands{SandboxConfig: SandboxConfig{HandsConfig: cfg}}
	h.Dir = filepath.Join(cfg.Dir, "kill")
	rows, err := h.part(ctx, killRow)
	if err != nil {
		return nil, fmt.Errorf("measuring the kill of a sandbox: %w", err)
	}
	seen, err := seenRows(ctx, cfg)
	if err != nil {
		return rows, fmt.Errorf("measuring a revocation: %w", err)
	}
	return append(rows, seen...), nil
}

// killRow destroys sandboxes with many processes; a process that is found afterwards breaks the row.
func killRow(ctx context.Context, h *hands) ([]Row, error) {
	mark := fmt.Sprintf("86400.%d", os.Getpid())
	input, err := json.Marshal(map[string]string{"command": fmt.Sprintf("for i in $(seq %d); do sleep %s & done "+
		">/dev/null 2>&1", killProcesses, mark)})
	if err != nil {
		return nil, err
	}
	var samples []time.Duration
	left := 0
	for i := range killRounds {
		box, _, err := h.make(ctx)
		if err != nil {
			return nil, err
		}
		_, err = execOnce(ctx, box, "bash", input, fmt.Sprint("kill/", i))
		for end := time.Now().Add(seenTimeout); err == nil &&
			marked(mark) < killProcesses; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				err = fmt.Errorf("only %d of %d processes run", marked(mark), killProcesses)
			}
		}
		if err != nil {
			return nil, errors.Join(err, h.native.Destroy(context.WithoutCancel(ctx), box.ID()))
		}
		begin := time.Now()
		if err := h.native.Destroy(ctx, box.ID()); err != nil {
			return nil, err
		}
		samples = append(samples, time.Since(begin))
		left += marked(mark)
		if err := box.Close(); err != nil {
			return nil, err
		}
	}
	row := Latency(fmt.Sprintf("kill/sandbox/%d", killProcesses), samples, 0)
	row.Bar, row.OK = fmt.Sprintf("<= %g ms", millis(killBar)), row.P50 <= micros(killBar) && left == 0
	row.Note = fmt.Sprintf("until no process is left (%d were); floor is F, the spawn of %s", left, h.kind)
	return []Row{row}, nil
}

// marked counts the processes of this machine that carry a mark.
func marked(mark string) (n int) {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0
	}
	for _, path := range lines {
		if b, err := os.ReadFile(path); err == nil && string(b) == "sleep\x00"+mark+"\x00" {
			n++
		}
	}
	return n
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// switchGate is the kill switch of the server whose gateway is measured.
type switchGate struct{ *kill.Switch }

// May implements egress.Gate.
func (g switchGate) May(ctx context.Context, s egress.Subject) error {
	return g.Check(ctx, s.Config.Subject(s.Session))
}

// seenRows has two servers of one database: one whose gateway is asked all the time, and one where things are
// taken away.
func seenRows(ctx context.Context, cfg HandsConfig) ([]Row, error) {
	keys := filepath.Join(cfg.Dir, "keys")
	var sw *kill.Switch
	var v outboard.Vault
	r, err := newEgressRig(ctx, EgressConfig{Dir: cfg.Dir,
		adjust: func(st *store.Store, gc *egress.Config, sc *outboard.SessionConfig) error {
			sw = kill.New(kill.Config{Source: st})
			sw.Start()
			gc.Gate, gc.Credentials = switchGate{sw}, server.NewCredentials(keeper(st, keys))
			now := time.Now().UTC()
			v = outboard.Vault{ID: outboard.NewID[outboard.VaultID](outboard.PrefixVault), Org: outboard.DefaultOrg,
				DisplayName: "bench", CreatedAt: now, UpdatedAt: now}
			sc.VaultIDs = []string{string(v.ID)}
			return st.PutVault(ctx, v)
		}})
	if sw != nil {
		defer sw.Stop()
	}
	if err != nil {
		return nil, err
	}
	defer r.close()
	there, err := store.Open(ctx, store.Config{Path: filepath.Join(cfg.Dir, "egress.db")})
	if err != nil {
		return nil, err
	}
	defer there.Close()
	revoked, err := revokedRow(ctx, r, keeper(there, keys), v.ID)
	if err != nil {
		return nil, err
	}
	killed, err := killedRow(ctx, r, there)
	return []Row{revoked, killed}, err
}

func keeper(st *store.Store, dir string) *vault.Keeper {
	return vault.New(vault.Config{Store: st, Wrappers: []vault.Wrapper{vault.KeyDir{Dir: dir}}})
}

// revokedRow makes a credential, has it used, archives it at the other server, and waits for the first request
// without it.
func revokedRow(ctx context.Context, r *egressRig, there *vault.Keeper, in outboard.VaultID) (Row, error) {
	c := r.client(true)
	var samples, plain []time.Duration
	for i := range seenRounds {
		id := outboard.NewID[outboard.CredentialID](outboard.PrefixCredential)
		token := fmt.Sprintf("bench-token-%d-%d", os.Getpid(), i)
		err := there.Create(ctx, outboard.Credential{ID: id, Vault: in, CreatedAt: time.Now().UTC(),
			Auth: outboard.Auth{Type: outboard.AuthHeader, Name: "bench",
				HeaderName: "X-Bench", Format: "{secret}", Rule: outboard.UseRule{Hosts: []string{egressHost},
					Ports: []int{r.port()}}}}, vault.Secrets{Value: outboard.NewSecret(token)})
		if err != nil {
			return Row{}, err
		}
		if _, err := r.await(ctx, c, func(a answer) bool { return a.header != "" }); err != nil {
			return Row{}, fmt.Errorf("waiting for the use of a credential: %w", err)
		}
		begin := time.Now()
		if _, err := r.ask(ctx, c); err != nil {
			return Row{}, err
		}
		plain = append(plain, time.Since(begin))
		begin = time.Now()
		if _, err := there.Archive(ctx, id); err != nil {
			return Row{}, err
		}
		at, err := r.await(ctx, c, func(a answer) bool { return a.header == "" })
		if err != nil {
			return Row{}, fmt.Errorf("waiting for the end of a credential: %w", err)
		}
		samples = append(samples, at.Sub(begin))
	}
	return seen("kill/revoked", samples, plain), nil
}

// killedRow has the other server kill the session, and waits for the first request that is refused.
func killedRow(ctx context.Context, r *egressRig, there *store.Store) (Row, error) {
	c := r.client(true)
	var samples, plain []time.Duration
	for range seenRounds {
		begin := time.Now()
		if a, err := r.ask(ctx, c); err != nil || a.status != http.StatusOK {
			return Row{}, fmt.Errorf("a request before the kill was answered %d: %w", a.status, err)
		}
		plain = append(plain, time.Since(begin))
		k := outboard.Kill{ID: outboard.NewID[outboard.KillID](outboard.PrefixKill), Scope: outboard.KillSession,
			Target: string(r.session), Level: outboard.KillStop, At: time.Now().UTC()}
		begin = time.Now()
		if err := there.PutKill(ctx, k); err != nil {
			return Row{}, err
		}
		at, err := r.await(ctx, c, func(a answer) bool { return a.status == http.StatusForbidden })
		if err != nil {
			return Row{}, fmt.Errorf("waiting for a refusal: %w", err)
		}
		samples = append(samples, at.Sub(begin))
		if err := there.LiftKill(ctx, k.ID, "bench", time.Now().UTC()); err != nil {
			return Row{}, err
		}
		if _, err := r.await(ctx, c, func(a answer) bool { return a.status == http.StatusOK }); err != nil {
			return Row{}, fmt.Errorf("waiting for the lifting: %w", err)
		}
	}
	return seen("kill/seen", samples, plain), nil
}

// seen is a row in milliseconds, of which the worst counts: a promise holds always.
func seen(name string, samples, plain []time.Duration) Row {
	p50, worst, floor := millis(quantile(samples, 0.5)), millis(quantile(samples, 1)), millis(quantile(plain, 0.5))
	return Row{Name: name, Unit: "ms", N: len(samples), P50: round(p50), P99: round(worst), Floor: round(floor),
		Ratio: ratio(p50, floor),
		Bar: fmt.Sprintf("<= %g ms",
			millis(seenBar)), OK: worst <= millis(seenBar), Note: "p99 is the worst, which the bar is for; floor is " +
			"one request; another server of the database did it"}
}

// answer is what a request brought back: the status, and what the server was sent in X-Bench.
type answer struct {
	status int
	header string
}

func (r *egressRig) ask(ctx context.Context, c *http.Client) (a answer, err error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url("/seen"), nil)
	if err != nil {
		return a, err
	}
	resp, err := c.Do(q)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	a.status = resp.StatusCode
	if _, sent, ok := strings.Cut(string(b), "X-Bench: "); ok {
		a.header = sent
	}
	return a, err
}

// await asks again and again, and returns when it asked for the first answer that is as wanted.
func (r *egressRig) await(ctx context.Context, c *http.Client, want func(answer) bool) (time.Time, error) {
	for end := time.Now().Add(seenTimeout); ; {
		begin := time.Now()
		a, err := r.ask(ctx, c)
		if err != nil || want(a) {
			return begin, err
		}
		if time.Now().After(end) {
			return begin, errors.New("it did not come about")
		}
	}
}
