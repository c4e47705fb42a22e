package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

const (
	// loginPatience is how long somebody may take to sign in.
	loginPatience = 10 * time.Minute
	// maxPasted bounds the address that somebody pastes.
	maxPasted = 16 << 10
)

// savedLogin is what this machine keeps of a login: a file of mode 0600 per server.
type savedLogin struct {
	URL    string    `json:"url"`
	Key    string    `json:"key"`
	Secret string    `json:"secret"`
	Email  string    `json:"email"`
	Until  time.Time `json:"until"`
	Renew  time.Time `json:"renew,omitzero"` // from when on it should be renewed; zero = it cannot be
}

func loginPath(data, server string) string {
	sum := sha256.Sum256([]byte(strings.TrimSuffix(server, "/")))
	return filepath.Join(data, "logins", hex.EncodeToString(sum[:8])+".json")
}

// readLogin returns the login at a server; nil is none.
func readLogin(data, server string) (*savedLogin, error) {
	b, err := os.ReadFile(loginPath(data, server))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var l savedLogin
	if err == nil {
		err = json.Unmarshal(b, &l)
	}
	if err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "reading the login at %s: %w", server, err).
			WithHint("outboard login %s", server)
	}
	return &l, nil
}

// loginKey is the key of the login at a server, which is renewed when it is time. Unauthenticated if there is
// none, or it is over.
func (a *app) loginKey(ctx context.Context, data, server string) (string, error) {
	l, err := readLogin(data, server)
	if err == nil && l != nil && !l.Renew.IsZero() && !time.Now().Before(l.Renew) {
		if l, err = a.renewLogin(ctx, data, server, l); err != nil {
			return "", err
		}
	}
	switch {
	case err != nil:
		return "", err
	case l == nil:
		return "", outboard.Errorf(outboard.Unauthenticated,
			"you are not signed in at %s, and OUTBOARD_API_KEY is not set", server).
			WithHint("outboard login %s; or a key: the server wrote one to admin.key in its data directory", server)
	case !time.Now().Before(l.Until):
		return "", outboard.Errorf(outboard.Unauthenticated, "your login at %s was over on %s", server, l.Until.Local().
			Format("2006-01-02 15:04")).
			WithHint("outboard login %s", server)
	}
	a.kept = server
	return l.Secret, nil
}

// renewLogin renews a login at its server. While it lasts, a server or a provider that does not answer is no
// reason to stop.
func (a *app) renewLogin(ctx context.Context, data, server string, l *savedLogin) (*savedLogin, error) {
	c, err := client.New(client.Config{URL: server, Key: l.Secret, Insecure: a.env("OUTBOARD_INSECURE") == "1",
		UserAgent: "outboard-cli/" + thisVersion().Version})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	in, err := c.RenewLogin(ctx)
	switch {
	case err != nil && outboard.KindOf(err) == outboard.Unauthenticated:
		return nil, err
	case err != nil && time.Now().Before(l.Until):
		return l, nil // the next command tries again
	case err != nil:
		return nil, fmt.Errorf("renewing your login at %s: %w", server, err)
	}
	in.Key.Secret = l.Secret
	if err := saveLogin(data, server, in); err != nil {
		return nil, err
	}
	return readLogin(data, server)
}

func newLogin(a *app) *cobra.Command {
	var paste, device bool
	cmd := &cobra.Command{Use: "login [URL]", Short: "Sign in at a server with your identity provider",
		Args: rangeArgs(0, 1, "a server"),
		Long: "Sign in at a server with your identity provider. The browser comes back to a port of this machine.\n\n" +
			"The login is kept in the data directory and used for that server wherever OUTBOARD_API_KEY is not set. Commands renew it as long as the\n" +
			"identity provider agrees, where it can be renewed; else it ends after a while: sign in again then. " +
			"Without a browser on this machine use --no-browser: open the address elsewhere, and paste where it " +
			"ends up.",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, data, err := a.loginServer(args)
			if err != nil {
				return err
			}
			defer c.Close()
			if device && paste {
				return usagef("--device and --no-browser exclude each other")
			}
			if device {
				return a.loginDevice(cmd.Context(), c, data)
			}
			return a.login(cmd.Context(), c, data, paste)
		}}
	cmd.Flags().BoolVar(&paste, "no-browser", false, "do not open a browser; read the address it ends up at from "+
		"standard input")
	cmd.Flags().BoolVar(&device, "device", false, "sign in on another device, by a code that is shown here; where "+
		"the server has login.device")
	return cmd
}

// loginServer returns a client without a key for the server that is meant.
func (a *app) loginServer(args []string) (*client.Client, string, error) {
	data, err := a.dataDir()
	if err != nil {
		return nil, "", err
	}
	server := a.env("OUTBOARD_URL")
	if len(args) == 1 {
		server = args[0]
	}
	if server == "" {
		if here, ok := readAddress(data); ok {
			server = here.URL
		}
	}
	if server == "" {
		return nil, "", usagef("%s", "which server?").WithHint("outboard login https://HOST, or set OUTBOARD_URL")
	}
	c, err := client.New(client.Config{URL: server, Insecure: a.env("OUTBOARD_INSECURE") == "1",
		UserAgent: "outboard-cli/" + thisVersion().Version})
	return c, data, err
}

// attempt is one sign-in on its way.
type attempt struct {
	start    client.LoginStart
	verifier string
	issuer   string
}

func newAttempt(redirect string) *attempt {
	at := &attempt{verifier: rand.Text() + rand.Text()}
	sum := sha256.Sum256([]byte(at.verifier))
	at.start = client.LoginStart{Redirect: redirect, State: rand.Text(), Nonce: rand.Text(),
		Challenge: base64.RawURLEncoding.EncodeToString(sum[:])}
	return at
}

func (a *app) login(ctx context.Context, c *client.Client, data string, paste bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, loginPatience, outboard.Errorf(outboard.Canceled,
		"nobody signed in within %s", loginPatience))
	defer cancel()
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return outboard.Errorf(outboard.Unavailable, "listening for the browser: %w", err)
	}
	at := newAttempt("http://" + ln.Addr().String() + "/callback")
	page, err := c.StartLogin(ctx, at.start)
	if err != nil {
		ln.Close()
		return err
	}
	at.issuer = page.Issuer
	code, err := a.await(ctx, ln, at, page.URL, paste)
	if err != nil {
		return err
	}
	in, err := c.FinishLogin(ctx, client.LoginAnswer{Code: code, Redirect: at.start.Redirect, Verifier: at.verifier,
		Nonce: at.start.Nonce,
		Org:   cmp.Or(a.org, a.env("OUTBOARD_ORG"))})
	if err != nil {
		return err
	}
	if err := saveLogin(data, c.URL(), in); err != nil {
		return err
	}
	return a.signedIn(c.URL(), in)
}

func saveLogin(data, server string, in client.Login) error {
	l := savedLogin{URL: server, Key: in.Key.ID, Secret: in.Key.Secret, Email: in.User.Email}
	if in.Key.ExpiresAt != nil {
		l.Until = *in.Key.ExpiresAt
	}
	if in.Key.RenewAfter != nil {
		l.Renew = *in.Key.RenewAfter
	}
	b, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("encoding a login: %w", err)
	}
	path := loginPath(data, server)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return dataError(data, err)
	}
	if err := writePrivate(path, string(b)+"\n"); err != nil {
		return dataError(data, err)
	}
	return nil
}

func (a *app) signedIn(server string, in client.Login) error {
	if a.json {
		in.Key.Secret = ""
		return a.object(map[string]any{"type": "login", "url": server, "user": in.User, "key": in.Key})
	}
	until := ""
	if in.Key.ExpiresAt != nil {
		until = ", until " + in.Key.ExpiresAt.Local().Format("2006-01-02 15:04")
		if in.Key.RenewAfter != nil {
			until += " and renewed when it is used"
		}
	}
	if a.env("OUTBOARD_URL") == "" {
		a.say("to use it: export OUTBOARD_URL=%s", server)
	}
	_, err := fmt.Fprintf(a.out, "signed in at %s as %s, %s%s\n", server, term.Line(in.User.Email, 80), in.User.Role,
		until)
	return err
}

// await returns the code with which the browser comes back, or that of the address somebody pastes.
func (a *app) await(ctx context.Context, ln net.Listener, at *attempt, page string, paste bool) (string, error) {
	back := make(chan url.Values, 1) // the first one that is ours
	srv := &http.Server{Handler: at.callback(ln.Addr().String(), back), ReadHeaderTimeout: 10 * time.Second,
		MaxHeaderBytes: 64 << 10}
	var serving sync.WaitGroup
	serving.Go(func() { srv.Serve(ln) }) // ends with the server; a callback that never comes is the context's to end
	defer serving.Wait()
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second) // the browser gets its answer
		defer cancel()
		if srv.Shutdown(end) != nil {
			srv.Close()
		}
	}()
	failed := make(chan error, 1)
	fmt.Fprintf(a.errs, "outboard: sign in at: %s\n", term.Line(page, 4096))
	if paste {
		a.say("then paste the address that the browser ends up at, whether or not it shows a page")
		go func() { failed <- at.pasted(a.in, back) }() // ends with its input, or with the process
	} else if err := a.browse(page); err != nil {
		a.say("no browser could be opened: %v", err)
	}
	for {
		select {
		case q := <-back:
			return at.code(q)
		case err := <-failed:
			if err != nil {
				return "", err
			}
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// callback answers the browser. What is not of this attempt is refused and forgotten: any page can send a browser here.
func (at *attempt) callback(host string, back chan<- url.Values) http.Handler {
	say := func(w http.ResponseWriter, status int, text string) {
		h := w.Header()
		h.Set("Content-Type", "text/plain; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		io.WriteString(w, text+"\n")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if r.Host != host || r.Method != http.MethodGet || r.URL.Path != "/callback" || !at.ours(q) {
			say(w, http.StatusBadRequest, "This is not the sign-in that outboard waits for.")
			return
		}
		select {
		case back <- q:
		default: // the browser asked again
		}
		say(w, http.StatusOK, "outboard has the answer. You can close this page and go back to the terminal.")
	})
}

// ours reports whether an answer belongs to this attempt.
func (at *attempt) ours(q url.Values) bool {
	return subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(at.start.State)) == 1
}

// pasted reads the address from somebody.
func (at *attempt) pasted(r io.Reader, back chan<- url.Values) error {
	line, err := bufio.NewReader(io.LimitReader(r, maxPasted)).ReadString('\n')
	line = strings.TrimSpace(line)
	if line == "" {
		return outboard.Errorf(outboard.Invalid, "no address was pasted: %w",
			cmp.Or(err, errors.New("the line is empty")))
	}
	u, err := url.Parse(line)
	if err != nil || u.Query().Get("state") == "" {
		return outboard.Errorf(outboard.Invalid, "what was pasted is not the address that the browser ends up at").
			WithHint("it begins with %s?", at.start.Redirect)
	}
	if !at.ours(u.Query()) {
		return outboard.Errorf(outboard.Denied, "the address is of another sign-in").
			WithHint("begin again: outboard login")
	}
	select {
	case back <- u.Query():
	default: // the browser was here already
	}
	return nil
}

// code returns the code of an answer, unless it is a refusal or comes from somebody else than the provider that
// was asked (RFC 9207).
func (at *attempt) code(q url.Values) (string, error) {
	if iss := q.Get("iss"); iss != "" && iss != at.issuer {
		return "", outboard.Errorf(outboard.Denied, "the answer comes from %s, and %s was asked", term.Line(iss, 200),
			at.issuer)
	}
	if why := q.Get("error"); why != "" {
		return "", outboard.Errorf(outboard.Denied, "the identity provider says: %s",
			term.Line(cmp.Or(q.Get("error_description"), why), 300))
	}
	code := q.Get("code")
	if code == "" {
		return "", outboard.Errorf(outboard.Unavailable, "the identity provider sent no code")
	}
	return code, nil
}

// browse opens an address in the browser of this machine.
func (a *app) browse(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" { // a server that is not ours may have sent it
		return outboard.Errorf(outboard.Denied, "the server sent %q", term.Line(address, 100))
	}
	argv := []string{"xdg-open"}
	switch {
	case a.env("BROWSER") != "":
		argv = []string{a.env("BROWSER")}
	case runtime.GOOS == "darwin":
		argv = []string{"open"}
	case runtime.GOOS == "windows":
		argv = []string{"rundll32", "url.dll,FileProtocolHandler"}
	}
	cmd := exec.Command(argv[0], append(argv[1:], u.String())...)
	if err := cmd.Start(); err != nil {
		return err
	}
	go cmd.Wait() // it may go on for as long as it likes
	return nil
}

func newLogout(a *app) *cobra.Command {
	return &cobra.Command{Use: "logout [URL]", Short: "End your login at a server", Args: rangeArgs(0, 1, "a server"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, data, err := a.loginServer(args)
			if err != nil {
				return err
			}
			defer c.Close()
			return a.logout(cmd.Context(), c.URL(), data)
		}}
}

// logout revokes the key at the server, and forgets it only then: a key that nobody remembers would live on.
func (a *app) logout(ctx context.Context, server, data string) error {
	l, err := readLogin(data, server)
	if err != nil {
		return err
	}
	if l == nil {
		return outboard.Errorf(outboard.NotFound, "you are not signed in at %s", server)
	}
	c, err := client.New(client.Config{URL: server, Key: l.Secret, Insecure: a.env("OUTBOARD_INSECURE") == "1",
		UserAgent: "outboard-cli/" + thisVersion().Version})
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.RevokeKey(ctx, l.Key)
	if err != nil && outboard.KindOf(err) != outboard.Unauthenticated { // it is over, or was ended elsewhere
		return err
	}
	if err := os.Remove(loginPath(data, server)); err != nil {
		return dataError(data, err)
	}
	return a.done(map[string]any{"type": "logout", "url": server, "key": l.Key}, "signed out at "+server, nil)
}
