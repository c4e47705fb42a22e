package vault

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
)

// What a key management service may take, and say.
const (
	kmsTimeout = 10 * time.Second
	maxKMS     = 64 << 10 // an answer holds one key of 32 bytes
)

// service encrypts a short key outside this process. key names the service's own key, and is not secret.
type service interface {
	encrypt(ctx context.Context, plain []byte) (key, sealed string, err error)
	decrypt(ctx context.Context, key, sealed string) ([]byte, error)
}

// External is a Wrapper whose key-encryption key only a key management service can open. Each wrapping has a
// fresh key of its own: the service sees 32 random bytes and never a data key, and what a wrapping is bound to
// holds whether or not the service can bind anything.
type External struct {
	kind    string
	service service
}

// Kind implements Wrapper.
func (e External) Kind() string { return e.kind }

// Wrap implements Wrapper. The new key is opened once before it counts: a service that encrypts what it cannot
// decrypt, for lack of a right, say, would lock the vault at the next start.
func (e External) Wrap(ctx context.Context, plain,
	aad []byte) (json.RawMessage, []byte, func(json.RawMessage) error, error) {
	kek := make([]byte, keySize)
	rand.Read(kek)
	ctx, cancel := context.WithTimeout(ctx, kmsTimeout)
	defer cancel()
	key, sealed, err := e.service.encrypt(ctx, kek)
	if err != nil {
		return nil, nil, nil, e.failed("encrypting", err)
	}
	if back, err := e.service.decrypt(ctx, key, sealed); err != nil {
		return nil, nil, nil, e.failed("opening what it encrypted", err)
	} else if !bytes.Equal(back, kek) {
		return nil, nil, nil, outboard.Errorf(outboard.Unavailable, "%s opened another key than it was given", e.kind)
	}
	wrapped, err := sealWith(kek, plain, aad)
	return wrapping{Kind: e.kind, ID: key,
		Sealed: sealed}.raw(), wrapped, func(json.RawMessage) error { return nil }, err
}

// Unwrap implements Wrapper.
func (e External) Unwrap(ctx context.Context, raw json.RawMessage, wrapped, aad []byte) ([]byte, error) {
	w, err := parseWrapping(raw)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, kmsTimeout)
	defer cancel()
	kek, err := e.service.decrypt(ctx, w.ID, w.Sealed)
	if err != nil {
		return nil, e.failed("opening the vault key", err)
	}
	if len(kek) != keySize {
		return nil, outboard.Errorf(outboard.Denied, "%s opened a key of %d bytes", e.kind, len(kek))
	}
	return openWith(kek, wrapped, aad)
}

func (e External) failed(doing string, err error) error {
	return outboard.Errorf(outboard.KindOf(err), "the key management service (%s), %s: %w", e.kind, doing, err).
		WithHint("nothing is stored or used until it answers; see vault in docs/reference/config.md")
}

// Command returns a Wrapper that asks a program, which is started for each request with one JSON object on its
// standard input and answers with one on its standard output: {"op":"encrypt","plaintext":B64} with
// {"key":NAME,"ciphertext":TEXT}, and {"op":"decrypt","key":NAME,"ciphertext":TEXT} with {"plaintext":B64}.
// Another exit code than 0 is a failure, whose reason is "error" in the answer, else the end of what it wrote to
// standard error.
func Command(argv ...string) External { return External{"command", command(argv)} }

type command []string

type commandRequest struct {
	Op         string `json:"op"`
	Plaintext  []byte `json:"plaintext,omitempty"`
	Key        string `json:"key,omitempty"`
	Ciphertext string `json:"ciphertext,omitempty"`
}

type commandAnswer struct {
	Key        string `json:"key"`
	Ciphertext string `json:"ciphertext"`
	Plaintext  []byte `json:"plaintext"`
	Error      string `json:"error"`
}

func (c command) encrypt(ctx context.Context, plain []byte) (string, string, error) {
	a, err := c.ask(ctx, commandRequest{Op: "encrypt", Plaintext: plain})
	if err == nil && a.Ciphertext == "" {
		err = outboard.Errorf(outboard.Unavailable, "%s answered without a ciphertext", c[0])
	}
	return a.Key, a.Ciphertext, err
}

func (c command) decrypt(ctx context.Context, key, sealed string) ([]byte, error) {
	a, err := c.ask(ctx, commandRequest{Op: "decrypt", Key: key, Ciphertext: sealed})
	return a.Plaintext, err
}

func (c command) ask(ctx context.Context, r commandRequest) (a commandAnswer, err error) {
	in, err := json.Marshal(r)
	if err != nil {
		return a, outboard.Errorf(outboard.Internal, "encoding a request: %w", err)
	}
	cmd := exec.CommandContext(ctx, c[0], c[1:]...)
	cmd.WaitDelay = time.Second // what it started may keep its output open
	var out, errs limited
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(append(in, '\n')), &out, &errs
	run := cmd.Run()
	bad := json.Unmarshal(out.Bytes(), &a)
	switch {
	case ctx.Err() != nil:
		return a, outboard.Errorf(outboard.Unavailable, "%s took too long: %w", c[0], context.Cause(ctx))
	case run != nil && a.Error != "" && bad == nil:
		return a, outboard.Errorf(outboard.Unavailable, "%s: %s", c[0], short(a.Error))
	case run != nil:
		return a, outboard.Errorf(outboard.Unavailable, "%s: %w: %s", c[0], run, short(errs.String()))
	case bad != nil:
		return a, outboard.Errorf(outboard.Unavailable, "%s did not answer with a JSON object", c[0])
	case a.Error != "":
		return a, outboard.Errorf(outboard.Unavailable, "%s: %s", c[0], short(a.Error))
	}
	return a, nil
}

// limited keeps the beginning of what is written to it.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	l.Buffer.Write(p[:min(len(p), maxKMS-l.Len())])
	return len(p), nil
}

// short is the end of a program's complaint, which is where it says why, on one line.
func short(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 300 {
		s = "..." + s[len(s)-300:]
	}
	return strings.ToValidUTF8(s, "?")
}

// TransitConfig says which key of a HashiCorp Vault or OpenBao.
type TransitConfig struct {
	URL       string // https://host:8200
	Mount     string // "" = transit
	Key       string
	Namespace string // "" = none
	// TokenFile holds the token. It is read for each request, so that an agent may renew it, and must be nobody
	// else's to read.
	TokenFile string
	// HTTP reaches it; it must follow no redirects.
	HTTP *http.Client
}

// Transit returns a Wrapper that asks the transit engine of a HashiCorp Vault or OpenBao.
func Transit(cfg TransitConfig) External {
	if cfg.Mount == "" {
		cfg.Mount = "transit"
	}
	return External{"transit", transit(cfg)}
}

type transit TransitConfig

type transitData struct {
	Plaintext  []byte `json:"plaintext,omitempty"`
	Ciphertext string `json:"ciphertext,omitempty"`
}

func (t transit) encrypt(ctx context.Context, plain []byte) (string, string, error) {
	out, err := t.ask(ctx, "encrypt", t.Key, transitData{Plaintext: plain})
	if err == nil && out.Ciphertext == "" {
		err = outboard.Errorf(outboard.Unavailable, "it answered without a ciphertext")
	}
	return t.Key, out.Ciphertext, err
}

func (t transit) decrypt(ctx context.Context, key, sealed string) ([]byte, error) {
	if key != t.Key {
		return nil, outboard.Errorf(outboard.NotFound, "the vault key was wrapped by the service's key %q, and %q "+
			"is configured", key, t.Key)
	}
	out, err := t.ask(ctx, "decrypt", key, transitData{Ciphertext: sealed})
	return out.Plaintext, err
}

func (t transit) ask(ctx context.Context, op, key string, in transitData) (transitData, error) {
	// which an agent of the service may write, as its own user
	token, err := readPrivate(t.TokenFile, "the token of the key management service", false)
	if err != nil {
		return transitData{}, err
	}
	body, err := json.Marshal(in)
	if err != nil {
		return transitData{}, outboard.Errorf(outboard.Internal, "encoding a request: %w", err)
	}
	u, err := url.JoinPath(t.URL, "v1", t.Mount, op, url.PathEscape(key))
	if err != nil {
		return transitData{}, outboard.Errorf(outboard.Invalid, "its URL is malformed")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u, bytes.NewReader(body))
	if err != nil {
		return transitData{}, outboard.Errorf(outboard.Invalid, "its URL is malformed")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Vault-Request", "true")
	req.Header.Set("X-Vault-Token", strings.TrimSpace(string(token)))
	if t.Namespace != "" {
		req.Header.Set("X-Vault-Namespace", t.Namespace)
	}
	resp, err := t.HTTP.Do(req)
	if err != nil {
		return transitData{}, outboard.Errorf(outboard.Unavailable, "reaching %s: %s", req.URL.Host, plainError(err))
	}
	defer resp.Body.Close()
	return transitAnswer(resp)
}

func transitAnswer(resp *http.Response) (transitData, error) {
	var out struct {
		Data   transitData `json:"data"`
		Errors []string    `json:"errors"`
	}
	err := json.NewDecoder(io.LimitReader(resp.Body, maxKMS)).Decode(&out)
	if resp.StatusCode != http.StatusOK {
		return out.Data, outboard.Errorf(outboard.Unavailable, "it answered %d: %s", resp.StatusCode,
			short(strings.Join(out.Errors, "; ")))
	}
	if err != nil {
		return out.Data, outboard.Errorf(outboard.Unavailable, "its answer is not what was expected")
	}
	return out.Data, nil
}

// KMSConfig says which key of AWS KMS.
type KMSConfig struct {
	Region string
	Key    string // id, ARN or alias
	URL    string // "" = the region's own
	// Credentials are asked for each request.
	Credentials func(ctx context.Context) (Secrets, error)
	HTTP        *http.Client
	Now         func() time.Time // nil = time.Now
}

// AWSKMS returns a Wrapper that asks AWS KMS, with a symmetric key.
func AWSKMS(cfg KMSConfig) External {
	if cfg.URL == "" {
		cfg.URL = "https://kms." + cfg.Region + ".amazonaws.com"
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return External{"aws-kms", awsKMS(cfg)}
}

type awsKMS KMSConfig

// kmsContext is bound into what the service encrypts, and shows in its own trail.
var kmsContext = map[string]string{"outboard": "vault key"}

type kmsMessage struct {
	KeyID      string            `json:"KeyId,omitempty"`
	Plaintext  []byte            `json:"Plaintext,omitempty"`
	Ciphertext []byte            `json:"CiphertextBlob,omitempty"`
	Context    map[string]string `json:"EncryptionContext,omitempty"`
}

func (a awsKMS) encrypt(ctx context.Context, plain []byte) (string, string, error) {
	out, err := a.ask(ctx, "Encrypt", kmsMessage{KeyID: a.Key, Plaintext: plain, Context: kmsContext})
	if err == nil && (out.KeyID == "" || len(out.Ciphertext) == 0) {
		err = outboard.Errorf(outboard.Unavailable, "it answered without a key or a ciphertext")
	}
	return out.KeyID, base64.StdEncoding.EncodeToString(out.Ciphertext), err
}

// decrypt names the key that encrypted, so that one of somebody else's is not opened with whatever key it says
// it needs.
func (a awsKMS) decrypt(ctx context.Context, key, sealed string) ([]byte, error) {
	blob, err := base64.StdEncoding.DecodeString(sealed)
	if err != nil {
		return nil, outboard.Errorf(outboard.Denied, "the wrapping is not readable")
	}
	out, err := a.ask(ctx, "Decrypt", kmsMessage{KeyID: key, Ciphertext: blob, Context: kmsContext})
	return out.Plaintext, err
}

func (a awsKMS) ask(ctx context.Context, op string, in kmsMessage) (out kmsMessage, err error) {
	body, err := json.Marshal(in)
	if err != nil {
		return out, outboard.Errorf(outboard.Internal, "encoding a request: %w", err)
	}
	secrets, err := a.Credentials(ctx)
	if err != nil {
		return out, err
	}
	address := strings.TrimSuffix(a.URL, "/") + "/"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return out, outboard.Errorf(outboard.Invalid, "its URL is malformed")
	}
	req.Header.Set("Content-Type", "application/x-amz-json-1.1")
	req.Header.Set("X-Amz-Target", "TrentService."+op)
	signer := awsSigner{scope: outboard.AWSScope{Service: "kms", Region: a.Region}, secrets: secrets, now: a.Now}
	if err := signer.sign(&SignRequest{Method: req.Method, URL: address, Header: req.Header, Body: body,
		Held: true}); err != nil {
		return out, err
	}
	resp, err := a.HTTP.Do(req)
	if err != nil {
		return out, outboard.Errorf(outboard.Unavailable, "reaching %s: %s", req.URL.Host, plainError(err))
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxKMS))
	if resp.StatusCode != http.StatusOK {
		return out, outboard.Errorf(outboard.Unavailable, "it answered %d: %s", resp.StatusCode, kmsError(b))
	}
	if err = errors.Join(err, json.Unmarshal(b, &out)); err != nil {
		return out, outboard.Errorf(outboard.Unavailable, "its answer is not what was expected")
	}
	return out, nil
}

func kmsError(body []byte) string {
	var e struct {
		Type    string `json:"__type"`
		Message string `json:"message"`
	}
	if json.Unmarshal(body, &e) != nil {
		return "no reason"
	}
	return short(fmt.Sprintf("%s %s", e.Type[strings.LastIndexByte(e.Type, '#')+1:], e.Message))
}
