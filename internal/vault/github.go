package vault

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
)

// jwtLife is how long a signed claim to be the app is valid: GitHub takes up to ten minutes, and clocks differ.
const jwtLife = 5 * time.Minute

// minted is a token that an issuer has made for a version of a credential. It is kept in memory only.
type minted struct {
	token outboard.Secret
	until time.Time // it is renewed a minute before
	at    time.Time // when it was made
	of    outboard.Credential
	by    uses // the sessions that it was used for
}

const (
	// maxMinted bounds the tokens in memory.
	maxMinted = 1024
	// askAgain is how long an issuer is not asked again that has given no token: a program that asks in a loop
	// must not have the server do so too, which GitHub takes for abuse of the app. Whoever mends the credential
	// makes a new version of it, for which it is asked at once.
	askAgain = 2 * time.Second
	// refusedAfter is how old a token must be for another to be made because a server has refused it. A program
	// in a sandbox can have one refused whenever it likes: by asking for what no installation may.
	refusedAfter = time.Minute
)

// denied is why there was no token, and until when that is the answer.
type denied struct {
	err   error
	until time.Time
}

// installationToken returns a token for exactly the scope of a credential, made by the issuer or still valid,
// for a session. Several requests at once make one.
func (k *Keeper) installationToken(ctx context.Context, session outboard.SessionID, c *outboard.Credential,
	s Secrets) (outboard.Secret, error) {
	key := mintKey(c)
	if token, ok := k.mintedFor(key, session); ok {
		return token, nil
	}
	if err := k.deniedFor(key); err != nil {
		return outboard.Secret{}, err
	}
	token, err := k.flights.do(ctx, key, func(ctx context.Context) (outboard.Secret, error) {
		m, err := k.mint(ctx, c.Auth.GitHub, s.Value)
		if err != nil {
			k.keepDenied(key, err)
			return outboard.Secret{}, err
		}
		m.at, m.of, m.by = k.cfg.Now(), *c, uses{}
		k.keepMinted(key, m)
		return m.token, nil
	})
	if err == nil {
		k.mintedFor(key, session)
	}
	return token, err
}

// mintKey names what is minted for a credential.
func mintKey(c *outboard.Credential) string { return fmt.Sprintf("%s/%d", c.ID, c.Version) }

func (k *Keeper) keepMinted(key string, m minted) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.minted) >= maxMinted {
		clear(k.minted)
	}
	k.minted[key] = m
}

func (k *Keeper) keepDenied(key string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.denied) >= maxMinted {
		clear(k.denied)
	}
	k.denied[key] = denied{err, k.cfg.Now().Add(askAgain)}
}

// deniedFor returns why there was no token a moment ago.
func (k *Keeper) deniedFor(key string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	d := k.denied[key]
	if k.cfg.Now().Before(d.until) {
		return d.err
	}
	delete(k.denied, key)
	return nil
}

// mintedFor returns a minted token that is still valid, and notes whom it is for.
func (k *Keeper) mintedFor(key string, session outboard.SessionID) (outboard.Secret, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	m, ok := k.minted[key]
	if !ok || !k.cfg.Now().Add(renewBefore).Before(m.until) {
		return outboard.Secret{}, false
	}
	m.by.add(session)
	return m.token, true
}

// refused notes that a server has answered 401 to a token: the next use gets a new one. GitHub ends tokens
// before their time, when an installation is suspended or its permissions change. This one stays among those
// that Withdraw gives back, for it may live.
func (k *Keeper) refused(key string, token outboard.Secret) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.cfg.Now()
	maps.DeleteFunc(k.minted, func(_ string, m minted) bool { return now.After(m.until) })
	m, ok := k.minted[key]
	if !ok || m.token != token || now.Before(m.at.Add(refusedAfter)) {
		return
	}
	delete(k.minted, key)
	k.minted[key+" refused "+now.Format(time.RFC3339Nano)] = m
}

// mint asks the issuer for an installation token.
func (k *Keeper) mint(ctx context.Context, g *outboard.GitHubScope, key outboard.Secret) (minted, error) {
	jwt, err := appJWT(g.AppID, key, k.cfg.Signed())
	if err != nil {
		return minted{}, err
	}
	names := make([]string, len(g.Repositories))
	for i, r := range g.Repositories {
		names[i] = r[strings.LastIndexByte(r, '/')+1:]
	}
	body, err := json.Marshal(map[string]any{"repositories": names, "permissions": g.Permissions})
	if err != nil {
		return minted{}, outboard.Errorf(outboard.Internal, "encoding a token request: %w", err)
	}
	target := fmt.Sprintf("%s/app/installations/%d/access_tokens", strings.TrimSuffix(g.APIURL, "/"), g.InstallationID)
	ctx, cancel := context.WithTimeout(ctx, issuerTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(body))
	if err != nil {
		return minted{}, outboard.Errorf(outboard.Invalid, "the API URL of the GitHub App is malformed")
	}
	req.Header.Set("Accept", "application/vnd.github+json")
	req.Header.Set("Authorization", "Bearer "+jwt)
	req.Header.Set("Content-Type", "application/json")
	a, err := k.ask(req)
	if err != nil {
		return minted{}, outboard.Errorf(outboard.Unavailable, "asking %s for a token: %w", req.URL.Host, err)
	}
	if a.status != http.StatusCreated {
		return minted{}, outboard.Errorf(outboard.Unavailable, "asking %s for a token: it answered %d", req.URL.Host,
			a.status).
			WithHint("check the app's id, installation, key, repositories and permissions: outboard secret test")
	}
	return grantOf(g, a.body)
}

// grantOf reads an issued token and refuses one that can do more than was asked for.
func grantOf(g *outboard.GitHubScope, body []byte) (minted, error) {
	var out struct {
		Token        string            `json:"token"`
		ExpiresAt    time.Time         `json:"expires_at"`
		Permissions  map[string]string `json:"permissions"`
		Selection    string            `json:"repository_selection"`
		Repositories []struct {
			FullName string `json:"full_name"`
		} `json:"repositories"`
	}
	if err := json.Unmarshal(body, &out); err != nil || out.Token == "" {
		return minted{}, outboard.Errorf(outboard.Unavailable, "the GitHub App's issuer sent no token")
	}
	for name, level := range out.Permissions {
		if permissionRank(level) > permissionRank(g.Permissions[name]) && name != "metadata" {
			return minted{}, outboard.Errorf(outboard.Denied,
				"the issued token has permission %s:%s, and its credential names %q", name, level, g.Permissions[name])
		}
	}
	if out.Selection == "all" {
		return minted{}, outboard.Errorf(outboard.Denied, "the issued token reaches every repository, and its "+
			"credential names %d", len(g.Repositories))
	}
	for _, r := range out.Repositories {
		if !slices.ContainsFunc(g.Repositories, func(s string) bool { return strings.EqualFold(s, r.FullName) }) {
			return minted{}, outboard.Errorf(outboard.Denied,
				"the issued token reaches repository %s, and its credential names %s", r.FullName, strings.Join(g.Repositories, ", "))
		}
	}
	return minted{token: outboard.NewSecret(out.Token), until: out.ExpiresAt}, nil
}

// permissionRank orders permission levels; an unknown one is above all.
func permissionRank(level string) int {
	if i := slices.Index([]string{"", "read", "write", "admin"}, level); i >= 0 {
		return i
	}
	return 4
}

// appJWT is the app's claim to be itself, signed with RS256.
func appJWT(app int64, key outboard.Secret, now time.Time) (string, error) {
	priv, err := ParseRSAKey(key)
	if err != nil {
		return "", err
	}
	claims, err := json.Marshal(map[string]any{"iat": now.Add(-time.Minute).Unix(), "exp": now.Add(jwtLife).Unix(),
		"iss": fmt.Sprint(app)})
	if err != nil {
		return "", outboard.Errorf(outboard.Internal, "encoding a claim: %w", err)
	}
	enc := base64.RawURLEncoding.EncodeToString
	text := enc([]byte(`{"alg":"RS256","typ":"JWT"}`)) + "." + enc(claims)
	sum := sha256.Sum256([]byte(text))
	sig, err := rsa.SignPKCS1v15(rand.Reader, priv, crypto.SHA256, sum[:])
	if err != nil {
		return "", outboard.Errorf(outboard.Internal, "signing a claim")
	}
	return text + "." + enc(sig), nil
}

// ParseRSAKey reads a private key in PEM, PKCS #1 or #8. No error repeats any of it.
func ParseRSAKey(s outboard.Secret) (*rsa.PrivateKey, error) {
	bad := outboard.Errorf(outboard.Invalid, "the private key is not an RSA key in PEM")
	block, _ := pem.Decode([]byte(s.Reveal()))
	if block == nil {
		return nil, bad
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	any, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if key, ok := any.(*rsa.PrivateKey); err == nil && ok {
		return key, nil
	}
	return nil, bad
}

// gitHubHeader is how a token is sent: as a bearer to the API, and the way git does to everything else.
func gitHubHeader(g *outboard.GitHubScope, host string, token outboard.Secret) outboard.Secret {
	if u, err := url.Parse(g.APIURL); err == nil && strings.EqualFold(u.Hostname(), host) {
		return outboard.NewSecret("Bearer " + token.Reveal())
	}
	return outboard.NewSecret("Basic " + base64.StdEncoding.EncodeToString([]byte("x-access-token:"+token.Reveal())))
}
