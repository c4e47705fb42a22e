package llm

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/text"
)

// maxCall bounds one model call however lively its stream is: a server that sends keep-alives only must not hold
// a turn for ever. The largest responses of the slowest models take about an hour.
const maxCall = 2 * time.Hour

// minSecret is the shortest credential that is looked for in a provider's text. Servers without authentication
// are given placeholders such as "x", and to blank every x would make errors unreadable and hide nothing.
const minSecret = 6

// maxMessage bounds the text of a provider's error that is passed on.
const maxMessage = 500

// newClient returns the HTTP client of all wires. It follows no redirect: a key must not travel to another place.
func newClient() *http.Client {
	return &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// wire returns the client for a provider's wire.
func (r *Registry) wire(p Provider, info Info, m ModelInfo) Model {
	e := endpoint{provider: p, info: info, model: m, family: familyOf(m.Name), client: r.client,
		idle:  r.cfg.IdleTimeout,
		limit: r.cfg.MaxResponse, credential: r.cfg.Credential}
	e.thinking = cmp.Or(m.Thinking, e.family.thinking)
	switch p.Type {
	case TypeAnthropic:
		return &anthropicModel{e}
	case TypeResponses:
		return &responsesModel{e}
	}
	return &chatModel{e}
}

// endpoint is what the wires have in common: one model of one provider.
type endpoint struct {
	provider Provider
	info     Info
	model    ModelInfo
	family   family
	thinking string // a Thinking of ModelInfo
	client   *http.Client
	idle     time.Duration
	limit    int64

	credential func(ctx context.Context, ref, method, url string) (Secret, error)
}

// Info implements Model.
func (e *endpoint) Info() Info { return e.info }

// exchange is one model call: it watches the time and the bytes, passes on what is emitted, and explains failures.
type exchange struct {
	*endpoint
	parent  context.Context
	ctx     context.Context
	cancel  context.CancelCauseFunc
	emit    func(Delta)
	emitted bool

	mu    sync.Mutex
	timer *time.Timer // fires when the stream has been silent for too long
	bytes int64
	key   Secret // the one of the vault that was sent
}

// begin starts a call. The caller ends it with end.
func (e *endpoint) begin(ctx context.Context, emit func(Delta)) *exchange {
	x := &exchange{endpoint: e, parent: ctx, emit: emit}
	limited, stop := context.WithTimeoutCause(ctx, maxCall,
		&Error{Type: Failed, Message: fmt.Sprintf("the response did not end within %v", maxCall)})
	ctx, cancel := context.WithCancelCause(limited)
	x.ctx = ctx
	x.cancel = func(err error) { cancel(err); stop() }
	x.timer = time.AfterFunc(e.idle, func() {
		x.cancel(&Error{Type: Failed, Retryable: true, Message: fmt.Sprintf("the server sent nothing for %v", e.idle)})
	})
	return x
}

// end releases the call's timer and connection.
func (x *exchange) end() {
	x.timer.Stop()
	x.cancel(nil)
}

// delta passes on a piece of text or reasoning.
func (x *exchange) delta(kind string, start bool, text string) {
	x.emitted = x.emitted || text != ""
	if x.emit != nil && (start || text != "") {
		x.emit(Delta{Kind: kind, Start: start, Text: text})
	}
}

// httpClient returns the client to give to an SDK: the registry's, with this call's watch over it.
func (x *exchange) httpClient() *http.Client {
	c := *x.client
	c.Transport = x
	return &c
}

// RoundTrip implements http.RoundTripper.
func (x *exchange) RoundTrip(req *http.Request) (*http.Response, error) {
	for name, value := range x.provider.Headers {
		req.Header.Set(name, value.Reveal())
	}
	if err := x.authorize(req); err != nil {
		return nil, err
	}
	resp, err := cmp.Or(x.client.Transport, http.DefaultTransport).RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if err := checkAnswer(resp); err != nil {
		resp.Body.Close()
		return nil, err
	}
	resp.Body = &watchedBody{resp.Body, x}
	return resp, nil
}

// authorize puts a key of the vault into a request, in the header of the provider's wire. It is opened for each
// request, so that a rotated key is used by the next one.
func (x *exchange) authorize(req *http.Request) error {
	ref := x.provider.APIKey.Credential
	if ref == "" {
		return nil
	}
	if x.credential == nil {
		return outboard.Errorf(outboard.Unavailable, "the API key of provider %q is in a vault, and there is none here",
			x.provider.Name)
	}
	key, err := x.credential(x.ctx, ref, req.Method, req.URL.String())
	if err != nil {
		return outboard.Errorf(outboard.KindOf(err), "the API key of provider %q: %w", x.provider.Name, err)
	}
	x.mu.Lock()
	x.key = key
	x.mu.Unlock()
	if x.provider.Type == TypeAnthropic {
		req.Header.Set("X-Api-Key", key.Reveal())
	} else {
		req.Header.Set("Authorization", "Bearer "+key.Reveal())
	}
	return nil
}

// checkAnswer refuses answers the SDKs would take for an empty stream.
func checkAnswer(resp *http.Response) error {
	if resp.StatusCode >= 400 {
		return nil // an API error, which the SDK reads
	}
	if resp.StatusCode != http.StatusOK {
		return &Error{Type: Failed, Status: resp.StatusCode,
			Message: fmt.Sprintf("answered with status %d instead of a stream; "+
				"redirects are not followed, so check base_url", resp.StatusCode)}
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if slices.Contains([]string{"text/html", "application/json", "application/xml", "text/xml"}, kind) {
		return &Error{Type: Failed, Status: resp.StatusCode,
			Message: fmt.Sprintf("answered with %s instead of an event stream; check base_url and type", kind)}
	}
	return nil
}

// watchedBody is a response body that counts as alive while bytes arrive, and ends when there are too many.
type watchedBody struct {
	io.ReadCloser
	x *exchange
}

// Read implements io.Reader.
func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	x := b.x
	x.mu.Lock()
	defer x.mu.Unlock()
	if n > 0 && x.ctx.Err() == nil {
		x.timer.Reset(x.idle)
	}
	if x.bytes += int64(n); x.bytes > x.limit {
		e := &Error{Type: Failed, Message: fmt.Sprintf("the response is larger than %d bytes", x.limit)}
		x.cancel(e)
		return 0, e
	}
	return n, err
}

// garbage is the error for a stream that breaks its wire's rules. Trying again is not expected to help.
func garbage(format string, args ...any) *Error {
	return &Error{Type: Failed, Message: "the stream is broken: " + fmt.Sprintf(format, args...)}
}

// cut is the error for a stream that ended too early, as a broken connection does.
func cut() *Error {
	return &Error{Type: Failed, Retryable: true, Message: "the stream ended before the response was complete"}
}

// fail turns any error of the call into the one to return: the caller's own cancellation as it is, else an
// *Error. api knows the errors of the wire's SDK.
func (x *exchange) fail(err error, api func(error) *Error) error {
	if x.parent.Err() != nil {
		return context.Cause(x.parent)
	}
	var e Error
	if own, ok := errors.AsType[*outboard.Error](err); ok {
		e = *loadError(own)
	} else if cause, ok := errors.AsType[*Error](context.Cause(x.ctx)); ok {
		e = *cause
	} else if own, ok := errors.AsType[*Error](err); ok {
		e = *own
	} else if known := api(err); known != nil {
		e = *known
	} else {
		e = *transportError(err)
	}
	e.Emitted = x.emitted
	e.Message = fmt.Sprintf("model %s: %s", x.info.ID, x.clean(e.Message))
	return &e
}

// transportError classifies what net/http and the decoders return.
func transportError(err error) *Error {
	_, syntax := errors.AsType[*json.SyntaxError](err)
	_, kind := errors.AsType[*json.UnmarshalTypeError](err)
	if syntax || kind {
		return garbage("%v", err)
	}
	if errors.Is(err, bufio.ErrTooLong) {
		return garbage("a line is too long")
	}
	e := statusError(0)
	e.Message = "connection failed: " + err.Error()
	e.Err = err
	return e
}

// clean makes a provider's text fit to show: short, one line, without control characters, and without any
// credential that the provider may have echoed.
func (x *exchange) clean(s string) string {
	for _, secret := range x.secrets() {
		if len(secret) < minSecret {
			continue
		}
		s = strings.ReplaceAll(s, secret, "[secret]")
	}
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return ' '
		}
		return r
	}, s)
	return text.Clip(strings.Join(strings.Fields(s), " "), maxMessage)
}

func (x *exchange) secrets() []string {
	var out []string
	x.mu.Lock()
	key := x.key
	x.mu.Unlock()
	for _, s := range []Secret{x.provider.APIKey.Secret, key} {
		if !s.IsZero() {
			out = append(out, s.Reveal())
		}
	}
	for _, v := range x.provider.Headers {
		if !v.IsZero() {
			out = append(out, v.Reveal())
		}
	}
	return out
}

// maxTokens is the bound on output tokens to ask for.
func (e *endpoint) maxTokens(req Request) int64 {
	if req.MaxOutput > 0 {
		return min(req.MaxOutput, e.info.Output)
	}
	return e.info.Output
}
