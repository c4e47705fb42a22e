// Package notify tells an address outside that a call waits for a person: one POST per approval,
// signed as Standard Webhooks (https://www.standardwebhooks.com) describe.
//
// Invariants:
//   - What is due is in the store. So a notice survives a restart, several processes share the
//     work, and each attempt is counted before it is made.
//   - Package outbound dials the address, and redirects are not followed.
//
// Nothing can be answered through it: the receiver needs a key of the API.
//
// Start reading at Notifier.
package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/outbound"
	"github.com/outboard-dev/outboard/internal/store"
)

const (
	// lookEvery is how late a notice may be: a person does not notice a second.
	lookEvery = time.Second
	// sendTime bounds one attempt.
	sendTime = 10 * time.Second
	// takeTime is how long a taken notice is nobody else's: longer than a batch can take.
	takeTime = 2 * time.Minute
	// batch is how many notices are taken at a time.
	batch = 8
	// maxAttempts and firstWait bound the retries: with doubling waits the last is some 17 hours after the first.
	maxAttempts = 12
	firstWait   = 15 * time.Second
	// maxAnswer is how much of an answer is read, so that its connection can be used again.
	maxAnswer = 16 << 10
	// minSecret and maxSecret bound a signing secret. Standard Webhooks: 24 to 64 bytes.
	minSecret, maxSecret = 24, 64
)

// Config makes a Notifier.
type Config struct {
	Store  *store.Store
	URL    string           // https, or http to an address that Guard takes for private
	Secret string           // "whsec_" and base64
	Guard  *outbound.Guard  // what may be dialled
	Logger *slog.Logger     // nil = discard
	Now    func() time.Time // nil = the store's
}

// Notifier sends notices from Start to Stop.
type Notifier struct {
	cfg    Config
	secret []byte
	client *http.Client
	cancel context.CancelFunc
	loop   sync.WaitGroup
}

// New checks the configuration. Invalid: the address or the secret cannot be used.
func New(cfg Config) (*Notifier, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = cfg.Store.Now
	}
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, outboard.Errorf(outboard.Invalid, "configuring the webhook: its url must be an http(s) URL "+
			"without credentials or fragment")
	}
	if u.Scheme == "http" && len(cfg.Guard.Private) == 0 {
		return nil, outboard.Errorf(outboard.Invalid, "configuring the webhook: its url must be https").
			WithHint("on a network of your own set allow_private")
	}
	encoded, ok := strings.CutPrefix(strings.TrimSpace(cfg.Secret), "whsec_")
	secret, err := base64.StdEncoding.DecodeString(encoded)
	if !ok || err != nil || len(secret) < minSecret || len(secret) > maxSecret {
		return nil, outboard.Errorf(outboard.Invalid, "configuring the webhook: its secret must be whsec_ and the "+
			"base64 of %d to %d bytes", minSecret, maxSecret).
			WithHint("echo whsec_$(openssl rand -base64 32)")
	}
	return &Notifier{cfg: cfg, secret: secret, client: &http.Client{Transport: transport(cfg.Guard),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}, nil
}

// transport dials checked addresses only.
func transport(g *outbound.Guard) *http.Transport {
	return &http.Transport{
		Proxy: nil, // a proxy would resolve and dial by itself
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			if why := outbound.CheckHost(strings.ToLower(host)); why != "" {
				return nil, &outbound.Refusal{Why: why}
			}
			addrs, err := g.Lookup(ctx, strings.ToLower(host))
			if err != nil {
				return nil, err
			}
			return outbound.Dial(ctx, addrs, port)
		},
		TLSHandshakeTimeout:    sendTime,
		ResponseHeaderTimeout:  sendTime,
		MaxResponseHeaderBytes: 64 << 10,
		IdleConnTimeout:        time.Minute,
	}
}

// Start begins to look for notices. It may be called once.
func (n *Notifier) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	n.loop.Go(func() {
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for {
			if err := n.once(ctx); err != nil && ctx.Err() == nil {
				n.cfg.Logger.Warn("looking for notices", "err", err)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
}

// Stop ends it. What is under way is cut, and comes again in some process. It may be called twice, and without Start.
func (n *Notifier) Stop() {
	if n.cancel != nil {
		n.cancel()
	}
	n.loop.Wait()
	n.client.CloseIdleConnections()
}

// once sends what is due.
func (n *Notifier) once(ctx context.Context) error {
	now := n.cfg.Now()
	due, err := n.cfg.Store.TakeNotices(ctx, now, now.Add(takeTime), batch)
	if err != nil {
		return err
	}
	for _, d := range due {
		next := time.Time{}
		err := n.send(ctx, &d.Approval)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil
		case d.Attempt >= maxAttempts:
			n.cfg.Logger.Error("an approval was not announced; no more attempts", "approval", d.Approval.ID, "attempts",
				d.Attempt, "err", err)
		default:
			next = n.cfg.Now().Add(firstWait << (d.Attempt - 1))
			n.cfg.Logger.Warn("an approval was not announced; trying again", "approval", d.Approval.ID, "attempt",
				d.Attempt, "at", next, "err", err)
		}
		if err := n.cfg.Store.SetNotice(ctx, d.Approval.ID, next); err != nil {
			return err
		}
	}
	return nil
}

// message is the body of a notice.
type message struct {
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"`
	Data      data      `json:"data"`
}

// data tells of an approval. Request is canonical text: nothing in it is hidden, and nothing is markup.
type data struct {
	ID        outboard.ApprovalID `json:"id"`
	Session   outboard.SessionID  `json:"session_id"`
	Event     outboard.EventID    `json:"event_id"`
	Action    string              `json:"action"`
	Request   string              `json:"request"`
	Digest    string              `json:"digest"`
	Why       string              `json:"why"`
	Rules     []string            `json:"rules"`
	Approver  outboard.Approver   `json:"approver"`
	Needs     int                 `json:"needs"` // how many people must allow it
	ExpiresAt time.Time           `json:"expires_at"`
	Network   *outboard.NetTarget `json:"network,omitempty"` // of a host; then there is no event
}

// send makes one attempt. Any answer of the 2xx range is success.
func (n *Notifier) send(ctx context.Context, a *outboard.Approval) error {
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	body, err := json.Marshal(message{"approval.requested", a.CreatedAt,
		data{a.ID, a.Session, a.Call, a.Action, a.Request, a.Digest, a.Why,
			a.Rules, a.Approver, max(a.Needs, 1), a.ExpiresAt, a.Net}})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.cfg.URL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	at := n.cfg.Store.HostNow() // who gets it compares with a clock of their own
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "outboard-webhook")
	req.Header.Set("webhook-id", string(a.ID)) // the same for every attempt: the receiver can tell repetitions
	req.Header.Set("webhook-timestamp", strconv.FormatInt(at.Unix(), 10))
	req.Header.Set("webhook-signature", Sign(n.secret, string(a.ID), at, body))
	resp, err := n.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer)) // for the connection's sake; what it says does not matter
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the webhook answered %s", resp.Status)
	}
	return nil
}

// Sign returns the signature header of a message.
func Sign(secret []byte, id string, at time.Time, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "%s.%d.", id, at.Unix())
	mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
