package kube

import (
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A webhook that denies says with which status, and whoever may have webhooks must not make as many series as there are numbers.
func TestStatusesThatHTTPDoesNotKnowAreOneSeriesAHundred(t *testing.T) {
	for code, want := range map[int32]string{200: "200", 409: "409", 429: "429", 500: "500",
		499: "4xx", 520: "5xx", 599: "5xx", 600: "other", 777: "other", 99: "other", -1: "other", 1 << 30: "other"} {
		if got := statusCode(&apierrors.StatusError{ErrStatus: metav1.Status{Code: code}}); got != want {
			t.Errorf("status %d is called %s, want %s", code, got, want)
		}
	}
	for want, err := range map[string]error{"200": nil, "0": errors.New("no answer")} {
		if got := statusCode(err); got != want {
			t.Errorf("%v is called %s, want %s", err, got, want)
		}
	}
	names := make(map[string]bool)
	for code := range int32(10_000) {
		names[statusCode(&apierrors.StatusError{ErrStatus: metav1.Status{Code: code}})] = true
	}
	if len(names) > 70 {
		t.Errorf("10,000 statuses have %d names", len(names))
	}
}
