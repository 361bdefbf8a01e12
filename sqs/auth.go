package sqs

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/smithy-go/aws-http-auth/credentials"
	"github.com/aws/smithy-go/aws-http-auth/sigv4"
	v4 "github.com/aws/smithy-go/aws-http-auth/v4"
)

const (
	algorithm = "AWS4-HMAC-SHA256"
	// clockSkew is how far a client's clock may be off.
	clockSkew = 15 * time.Minute
	// maxExpiry bounds how long a signature in a URL is valid.
	maxExpiry = 7 * 24 * time.Hour
)

func denied(code, format string, args ...any) *apiError {
	return refuse(http.StatusForbidden, code, code, format, args...)
}

// signature is the signature of a request, with the key that the request names.
type signature struct {
	access, day, region, service string
	headers                      []string // lower-case
	value                        string
	inURL                        bool
	key                          Key // that of access
	at                           time.Time
}

// admit makes all checks of a request that do not need its body. The signature is nil if the server asks for none. kind
// is the type of the body.
func (s *Server) admit(r *http.Request, kind string) (*signature, error) {
	if s.options.Keys == nil {
		return nil, s.checkLocal(r)
	}
	sig, err := readSignature(r)
	if err != nil {
		return nil, err
	}
	var ok bool
	if sig.key, ok = s.options.Keys[sig.access]; !ok || sig.access == "" || sig.key.Secret == "" {
		return nil, denied("InvalidClientTokenId", "The security token included in the request is invalid.")
	}
	if sig.at, err = s.checkTime(r, sig); err != nil {
		return nil, err
	}
	return &sig, sig.checkCover(r, kind)
}

// checkCover refuses a request whose meaning could be changed without a change of its signature. All headers of AWS
// must be signed. Some SDKs do not sign Content-Type: the header must be signed, or agree with X-Amz-Target.
func (g *signature) checkCover(r *http.Request, kind string) error {
	for name := range r.Header {
		if name = strings.ToLower(name); strings.HasPrefix(name, "x-amz-") && !g.IsSigned(name) {
			return denied("AccessDenied", "There were headers present in the request which were not signed: %s", name)
		}
	}
	isJSON := strings.HasPrefix(r.Header.Get("X-Amz-Target"), targetPrefix)
	agrees := isJSON == (kind == jsonType) && (isJSON || kind == formType || r.ContentLength == 0)
	if !agrees && !g.IsSigned("content-type") {
		return denied("AccessDenied", "The header content-type is not signed, and not that of the signed request.")
	}
	return nil
}

// verify returns an error unless the signature is of this request. It sets the account of the call.
func (g *signature) verify(r *http.Request, body []byte, c *call) error {
	if g == nil {
		return nil
	}
	again, err := g.again(r, body)
	if err != nil || subtle.ConstantTimeCompare([]byte(again), []byte(g.value)) != 1 {
		return denied("SignatureDoesNotMatch", "The request signature we calculated does not match the signature "+
			"you provided. Check your AWS Secret Access Key and signing method. "+
			"Consult the service documentation for details.")
	}
	if g.key.Account != "" {
		c.account = g.key.Account
	}
	return nil
}

func incomplete(text string) error {
	return refuse(http.StatusBadRequest, "IncompleteSignature", "IncompleteSignature", "%s", text)
}

// readSignature reads the signature from the header, or from the URL.
func readSignature(r *http.Request) (signature, error) {
	fields := make(map[string]string)
	header, query := r.Header.Get("Authorization"), r.URL.Query()
	sig := signature{inURL: header == ""}
	switch {
	case sig.inURL && query.Get("X-Amz-Signature") == "":
		return sig, denied("MissingAuthenticationToken", "Request is missing Authentication Token")
	case sig.inURL:
		for _, name := range []string{"Credential", "SignedHeaders", "Signature"} {
			fields[name] = query.Get("X-Amz-" + name)
		}
	default:
		rest, ok := strings.CutPrefix(header, algorithm)
		if !ok {
			return sig, incomplete("Authorization header requires the algorithm " + algorithm)
		}
		for field := range strings.SplitSeq(rest, ",") {
			name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
			fields[name] = value
		}
	}
	scope := strings.Split(fields["Credential"], "/")
	if len(scope) < 5 || fields["SignedHeaders"] == "" || fields["Signature"] == "" {
		return sig, incomplete("Authorization header requires 'Credential', 'SignedHeaders' and 'Signature'.")
	}
	n := len(scope)
	sig.access, sig.day = strings.Join(scope[:n-4], "/"), scope[n-4]
	sig.region, sig.service = scope[n-3], scope[n-2]
	sig.headers, sig.value = strings.Split(strings.ToLower(fields["SignedHeaders"]), ";"), fields["Signature"]
	if sig.service != "sqs" || scope[n-1] != "aws4_request" || !slices.Contains(sig.headers, "host") {
		return sig, denied("SignatureDoesNotMatch",
			"Credential should be scoped to correct service: 'sqs', and the host be signed.")
	}
	return sig, nil
}

// checkTime returns when the request was signed. It is an error if that is too far from now.
func (s *Server) checkTime(r *http.Request, sig signature) (time.Time, error) {
	const form = "20060102T150405Z"
	text, expires := r.Header.Get("X-Amz-Date"), clockSkew
	if sig.inURL {
		text = r.URL.Query().Get("X-Amz-Date")
		if n, err := strconv.Atoi(r.URL.Query().Get("X-Amz-Expires")); err == nil {
			expires = min(time.Duration(n)*time.Second, maxExpiry)
		}
	}
	at, err := time.Parse(form, text)
	if err != nil {
		if at, err = http.ParseTime(r.Header.Get("Date")); err != nil {
			return at, incomplete("Authorization header requires existence of a 'X-Amz-Date' or a 'Date' header.")
		}
	}
	now := s.options.Now()
	if now.Sub(at) > expires || at.Sub(now) > clockSkew || at.UTC().Format("20060102") != sig.day {
		return at, denied("SignatureDoesNotMatch", "Signature expired: %s is now %s (15 min.)",
			at.UTC().Format(form), now.UTC().Format(form))
	}
	return at, nil
}

// IsSigned makes signature the rule that tells the signer which headers to sign.
func (g signature) IsSigned(header string) bool { return slices.Contains(g.headers, header) }

// again signs a copy of the request, with the headers that the client has signed.
func (g signature) again(r *http.Request, body []byte) (string, error) {
	copied := &http.Request{Method: r.Method, Host: r.Host, Header: make(http.Header)}
	u := *r.URL
	copied.URL = &u
	for _, name := range g.headers {
		if values := r.Header.Values(name); len(values) > 0 {
			copied.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	if slices.Contains(g.headers, "content-length") { // the HTTP server takes it out
		copied.Header.Set("Content-Length", strconv.FormatInt(r.ContentLength, 10))
	}
	token, form := r.Header.Get("X-Amz-Security-Token"), v4.SignatureTypeHeader
	if g.inURL {
		query := u.Query()
		token, form = query.Get("X-Amz-Security-Token"), v4.SignatureTypeQueryString
		query.Del("X-Amz-Signature")
		copied.URL.RawQuery = query.Encode()
	}
	sum := sha256.Sum256(body)
	err := sigv4.New().SignRequest(&sigv4.SignRequestInput{
		Request: copied, PayloadHash: sum[:], Service: g.service, Region: g.region, Time: g.at, SignatureType: form,
		Credentials: credentials.Credentials{AccessKeyID: g.access, SecretAccessKey: g.key.Secret, SessionToken: token},
	}, func(o *v4.SignerOptions) { o.HeaderRules = g })
	if err != nil {
		return "", err
	}
	if g.inURL {
		return copied.URL.Query().Get("X-Amz-Signature"), nil
	}
	_, value, _ := strings.Cut(copied.Header.Get("Authorization"), "Signature=")
	return value, nil
}
