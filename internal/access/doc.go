// Package access decides who may ask the gateway what.
//
// A [Guard] stands before SchedulingService. It asks a [Reviewer] whose token a call carries and whether that caller may do
// what the call needs, in Kubernetes' own terms: whoever may get a pod may ask where it waits. In Kubernetes the reviewer is
// the API server (TokenReview and SubjectAccessReview); elsewhere it is a file of tokens ([ReadTokens]). It also bounds how
// often each caller asks.
package access
