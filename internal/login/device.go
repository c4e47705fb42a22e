package login

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/outboard-dev/outboard"
	"golang.org/x/oauth2"
)

const (
	// deviceEvery is how often a client asks where the provider does not say (RFC 8628), and maxDeviceEvery the
	// most that it may say.
	deviceEvery    = 5 * time.Second
	maxDeviceEvery = time.Minute
	// maxDevice bounds how long somebody may take to type a code.
	maxDevice = 30 * time.Minute
)

// ErrPending means that nobody has finished a sign-in by a device code yet; ErrSlowDown too, and that the client
// asks too often.
var (
	ErrPending  = errors.New("nobody has signed in yet")
	ErrSlowDown = errors.New("nobody has signed in yet, and it was asked too often")
)

// Device is a sign-in on another device (RFC 8628): the person opens URL there and types User. Code is the
// terminal's, and secret: with it comes who has signed in.
type Device struct {
	Code  string
	User  string
	URL   string
	Whole string // URL with the code in it; "" = the provider has none
	Lasts time.Duration
	Every time.Duration // between two questions
}

// Device begins such a sign-in. NotFound: the server, or its provider, has none.
func (p *Provider) Device(ctx context.Context) (Device, error) {
	k, err := p.device(ctx)
	if err != nil {
		return Device{}, err
	}
	var out struct {
		Code  string `json:"device_code"`
		User  string `json:"user_code"`
		URL   string `json:"verification_uri"`
		Whole string `json:"verification_uri_complete"`
		Lasts int    `json:"expires_in"`
		Every int    `json:"interval"`
	}
	if why, err := p.post(ctx, k, k.endpoint.DeviceAuthURL, url.Values{"scope": {strings.Join(p.scopes(k), " ")}},
		&out); err != nil {
		return Device{}, err
	} else if why != "" {
		return Device{}, outboard.Errorf(outboard.Unavailable,
			"the identity provider does not begin a sign-in on another device: %s", why).
			WithHint("this server's client there must be allowed the device flow; or sign in without --device")
	}
	if out.Code == "" || len(out.Code) > maxCode || out.User == "" || len(out.User) > maxRandom || !secure(out.URL) ||
		out.Whole != "" && !secure(out.Whole) {
		return Device{}, outboard.Errorf(outboard.Unavailable,
			"the identity provider's answer for a sign-in on another device is not one")
	}
	d := Device{Code: out.Code, User: out.User, URL: out.URL, Whole: out.Whole,
		Lasts: min(time.Duration(out.Lasts)*time.Second, maxDevice),
		Every: min(time.Duration(out.Every)*time.Second, maxDeviceEvery)}
	if d.Every <= 0 {
		d.Every = deviceEvery
	}
	if d.Lasts <= 0 {
		return Device{}, outboard.Errorf(outboard.Unavailable,
			"the identity provider's sign-in on another device is over already")
	}
	return d, nil
}

// device returns what discovery found, where people may sign in on another device.
func (p *Provider) device(ctx context.Context) (*known, error) {
	none := outboard.Errorf(outboard.NotFound, "people cannot sign in on another device at this server").
		WithHint("sign in without --device; or whoever runs the server sets login.device")
	if !p.cfg.Device {
		return nil, none
	}
	k, err := p.discover(ctx)
	if err != nil {
		return nil, err
	}
	u := k.endpoint.DeviceAuthURL
	if u == "" {
		return nil, none.WithHint("the identity provider has no device flow: sign in without --device")
	}
	if !secure(u) || strings.HasPrefix(p.cfg.Issuer, "https:") && !strings.HasPrefix(u, "https:") {
		return nil, outboard.Errorf(outboard.Unavailable, "the identity provider names an address without https: %q", u)
	}
	return k, nil
}

// WhoAt returns who has signed in on another device. ErrPending and ErrSlowDown: nobody yet.
func (p *Provider) WhoAt(ctx context.Context, code string) (Person, error) {
	if code == "" || len(code) > maxCode {
		return Person{}, outboard.Errorf(outboard.Invalid, "device_code: it is empty or too long")
	}
	ctx, cancel := context.WithTimeout(oidc.ClientContext(ctx, p.http), timeout)
	defer cancel()
	k, err := p.device(ctx)
	if err != nil {
		return Person{}, err
	}
	var out tokens
	why, err := p.post(ctx, k, k.endpoint.TokenURL,
		url.Values{"grant_type": {"urn:ietf:params:oauth:grant-type:device_code"}, "device_code": {code}}, &out)
	switch {
	case err != nil:
		return Person{}, err
	case why == "authorization_pending":
		return Person{}, ErrPending
	case why == "slow_down":
		return Person{}, ErrSlowDown
	case why == "access_denied":
		return Person{}, outboard.Errorf(outboard.Denied, "the sign-in was refused at the identity provider")
	case why != "":
		return Person{}, refused("the code is not valid, was used, or is over")
	case out.ID == "":
		return Person{}, refused("there is no ID token in it")
	}
	token, err := p.holds(ctx, k, k.verifier, "its ID token", out.ID)
	if err != nil {
		return Person{}, err
	}
	if err := p.check(token, ""); err != nil { // a token of another flow has a nonce
		return Person{}, err
	}
	return p.person(token, out.Renew)
}

// tokens is what a provider's answer is read for.
type tokens struct {
	ID     string `json:"id_token"`
	Renew  string `json:"refresh_token"`
	Access string `json:"access_token"`
}

// post asks the provider as its client. why is the error that the provider names, with which nothing is wrong here.
func (p *Provider) post(ctx context.Context, k *known, to string, form url.Values, out any) (why string, err error) {
	resp, err := p.send(ctx, k, to, form)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body) // which is bounded
	if err == nil && resp.StatusCode == http.StatusOK && out != nil {
		err = json.Unmarshal(text, out)
	}
	var bad struct {
		Error string `json:"error"`
	}
	switch {
	case err != nil:
		return "", outboard.Errorf(outboard.Unavailable, "reading the identity provider's answer: %w", err)
	case resp.StatusCode == http.StatusOK:
		return "", nil
	case resp.StatusCode >= 500 || json.Unmarshal(text, &bad) != nil || bad.Error == "":
		return "", outboard.Errorf(outboard.Unavailable, "the identity provider answered %d", resp.StatusCode)
	case bad.Error == "invalid_client":
		return "", outboard.Errorf(outboard.Unavailable, "the identity provider does not accept this server: %s",
			bad.Error).
			WithHint("check login.client_id and the client's secret in the configuration of the server")
	}
	return fmt.Sprintf("%.100s", bad.Error), nil
}

// send posts a form as the provider's client.
func (p *Provider) send(ctx context.Context, k *known, to string, form url.Values) (*http.Response, error) {
	form.Set("client_id", p.cfg.ClientID)
	secret := ""
	if p.cfg.ClientSecret != nil {
		s, err := p.cfg.ClientSecret()
		if err != nil {
			return nil, outboard.Errorf(outboard.Unavailable,
				"reading the secret this server has at the identity provider: %w", err)
		}
		if secret = s.Reveal(); k.endpoint.AuthStyle == oauth2.AuthStyleInParams {
			form.Set("client_secret", secret)
		}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, asking(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Accept", "application/json")
	if secret != "" && k.endpoint.AuthStyle == oauth2.AuthStyleInHeader {
		r.SetBasicAuth(url.QueryEscape(p.cfg.ClientID), url.QueryEscape(secret))
	}
	resp, err := p.http.Do(r)
	if err != nil {
		return nil, asking(err)
	}
	return resp, nil
}

func asking(err error) error {
	return outboard.Errorf(outboard.Unavailable, "asking the identity provider: %w", plain(err))
}
